import benchmarks.seeds_executed as b, time
from benchmarks.report import Table
if __name__=="__main__":
    t=time.time()
    tab=Table(preface=("# x",""),header=b.HEADER)
    print(b.run_cores(tab,seconds=b.QUICK)); print(time.time()-t)
