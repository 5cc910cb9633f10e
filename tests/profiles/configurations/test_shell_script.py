"""The words of a training command in a shell script."""

import pytest

from profiles.configurations.argument_forms import read_arguments
from profiles.configurations.shell_script import program_of, read_script, training_words

SCRIPT = r"""#!/bin/bash
# a comment with "one quote
export GPUS_PER_NODE=8   # on each
NUM_NODES=${NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*NUM_NODES))
LAYOUT="Et*2|(t*2|)*3tL"
DTYPE='fp8'
CHECKPOINT=$1
ARGS=(
    --num-layers 9 # a comment within
    --pipeline-model-parallel-layout "$LAYOUT"
    --save "${CHECKPOINT}/run"
)
if [[ "$DTYPE" == "fp8" ]]; then
    ARGS+=("--fp8-format hybrid")
else
    ARGS+=(--bf16)
fi
[ -n "$X" ] && echo "none"
if [ -n "${WANDB_KEY}" ] ; then ARGS+=(--wandb-project p); fi
MORE="--micro-batch-size 1 \
  --global-batch-size $((WORLD_SIZE / 2))"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes ${NUM_NODES} pretrain_gpt.py "${ARGS[@]}" \
    ${MORE} 2>&1 | tee log
"""


def words(text: str, **given: str) -> list[str]:
    return training_words(read_script(text, given=given))


def test_variables_arrays_sums_and_conditions() -> None:
    """Tests that everything which the script itself decides is decided."""
    assert words(SCRIPT) == [
        "torchrun", "--nproc_per_node", "8", "--nnodes", "4", "pretrain_gpt.py",
        "--num-layers", "9", "--pipeline-model-parallel-layout", "Et*2|(t*2|)*3tL", "--save", "$1/run",
        "--fp8-format hybrid", "--micro-batch-size", "1", "--global-batch-size", "16", "2>&1", "|", "tee", "log",
    ]  # fmt: skip


def test_a_comment_takes_in_no_next_line() -> None:
    """Tests that a backslash joins two lines, but not a comment and the statement below it."""
    assert words('A="--a \\\n --b"\n# --c \\\nB="--d"\npython train.py $A $B')[2:] == ["--a", "--b", "--d"]


def test_a_date_is_one_word() -> None:
    """Tests that what stands between backquotes is one value, and takes in no flags behind it."""
    text = 'NOW=`date +"%Y %H"`\npython train.py --save out/$NOW --bf16'
    assert words(text)[2:] == ["--save", 'out/`date +"%Y %H"`', "--bf16"]


def test_given_variables_and_what_is_left_out() -> None:
    """Tests that the environment's variables count, and that a branch not taken is told."""
    assert words(SCRIPT, NNODES="2")[4] == "2"
    script = read_script(SCRIPT)
    assert script.left_out == ["ARGS+=(--bf16)", 'echo "none"', "ARGS+=(--wandb-project p)"]


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ('[ "$A" = "x" ]', True),
        ("[[ $A != x ]]", False),
        ("[ $N -gt 3 ]", True),
        ("[ $N -le 3 ]", False),
        ('[[ "$A" == "y" || $N -eq 4 ]]', True),
        ('[ -z "$NOBODY" ]', True),
        ('[ ! -n "$A" ]', False),
        ("[ $# -ge 1 ]", False),
    ],
)
def test_conditions(condition: str, is_met: bool) -> None:
    """Tests that a shell's own tests of strings and numbers are decided, and nothing is run."""
    found = words(f"A=x\nN=4\nB=1\nif {condition}; then\n B=2\nfi\npython a.py --b $B")
    assert found[-1] == ("2" if is_met else "1")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("--tp 4\n--pp '8'\n", ["--tp", "4", "--pp", "8"]),
        ('ALL="--tp 4 --pp 8"\n', ["--tp", "4", "--pp", "8"]),
        (
            'CMD="pretrain.py --tp 4"\nsrun bash -c "python $CMD"',
            ["srun", "bash", "-c", "python", "pretrain.py", "--tp", "4"],
        ),
        ("for x in 1 2; do\n python b.py --tp $x --pp 2\ndone\npython a.py --tp 1", ["python", "a.py", "--tp", "1"]),
        ("python a.py \\\r\n  --tp 2\r\n", ["python", "a.py", "--tp", "2"]),
    ],
)
def test_other_scripts(text: str, wanted: list[str]) -> None:
    """Tests that lists of flags, variables that hold them, and commands within commands are read; loops are not."""
    assert words(text) == wanted


def test_no_flags_at_all() -> None:
    """Tests that a script without flags is refused, and one that grows without end."""
    with pytest.raises(ValueError, match="no command with flags"):
        words("echo hello\n")
    with pytest.raises(ValueError, match="grows to"):
        words("A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9)


@pytest.mark.parametrize(
    ("scale", "wanted"), [("8B", "4096 16"), ("800M", "1024 8"), ("1B", "1024 8"), ("70B", "1 8"), ("x", "2 8")]
)
def test_cases(scale: str, wanted: str) -> None:
    """Tests that the first branch of a `case` that fits is taken, and nothing of the others."""
    script = read_script(
        f"""SCALE={scale}
        DEPTH=8
        case "${{SCALE}}" in
            "800M"|1B)
                WIDTH=1024
                ;;
            8B) WIDTH=4096; DEPTH=16 ;;
            7*) WIDTH=1;;
            *) WIDTH=2
        esac
        case $SCALE in 9B) DEPTH=1;; esac
        echo train.py --hidden-size $WIDTH --num-layers $DEPTH"""
    )
    assert training_words(script)[3::2] == wanted.split()


@pytest.mark.parametrize(
    "before",
    [
        'N=$(ssh host nvidia-smi --query-gpu=name | wc -l)\nF="--load /w/g$N"',
        'F="--load /w/`hostname | tr a b`"',
        'F="--load $(dirname $(pwd) | head -1)/w"',
        "F='--load x' # `unfinished",
        "F=\"--load $(echo 'a b') \"",
    ],
)
def test_what_other_commands_print_ends_nothing(before: str) -> None:
    """Tests that a pipe, flags or blanks of a command within a word are part of that word."""
    text = f"{before}\ntorchrun pretrain_gpt.py --bf16 $F --tensor-model-parallel-size 4 --num-layers 2"
    read = read_arguments(text, source="train.sh")
    assert (read.values["tensor_model_parallel_size"], read.values["num_layers"]) == ("4", "2")
    assert set(read.values) == {"bf16", "load", "tensor_model_parallel_size", "num_layers"}


def test_redirections_are_no_values() -> None:
    """Tests that files of output are left out wherever they stand, and that a pipe ends the command."""
    text = (
        "torchrun pretrain_gpt.py --bf16 &>> log/a --num-layers 2 2>&1 >out --seq-length 8 <in | tee b --num-layers 9"
    )
    read = read_arguments(text, source="train.sh")
    assert read.values == {"bf16": True, "num_layers": "2", "seq_length": "8"}


def test_flags_that_are_elsewhere_are_told() -> None:
    """Tests that an array or string of flags that the script does not set is named with its remedy, wherever it is."""
    text = (
        "torchrun $LAUNCH_ARGS pretrain_gpt.py $GPT_ARGS --num-layers 2 ${MOE_OPTIONS[@]} --load $CKPT --bf16 ${FLAGS}"
    )
    read = read_arguments(text, source="train.sh")
    assert read.values == {"num_layers": "2", "load": "$CKPT", "bf16": True}
    assert [each.split()[0] for each in read.strange] == ["$GPT_ARGS", "$MOE_OPTIONS", "$FLAGS"]
    assert read.strange[0].endswith("give --set GPT_ARGS='...')")
    given = read_arguments(text, source="train.sh", given={"GPT_ARGS": "--seq-length 8", "FLAGS": "--fp16"})
    assert (given.values["seq_length"], given.values["fp16"], len(given.strange)) == ("8", True, 1)


def test_defaults_with_braces_choices_and_arguments() -> None:
    """Tests that a default may hold a reference, arithmetic may choose, and a script's arguments are numbered on."""
    text = """
P=${P:-"${Q}/x"} R=1
TP=${12}
O=$(( ($TP > 1) ? 3 : 4 ))
python3 -m some.module a=$P --tp $TP --o $O
"""
    assert words(text, **{"12": "8", "Q": "q"}) == ["python3", "-m", "some.module", "a=q/x", "--tp", "8", "--o", "3"]
    assert words(text.replace("> 1", "!= 8"), **{"12": "8"})[-1] == "4"
    assert program_of(["torchrun", "-m", "a.b", "x.py"]) == (3, "x.py")
    assert program_of(["/bin/megatron", "sft"]) == (1, "megatron sft")
    assert program_of(["megatron", "export"]) is None


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ("[[ $N -gt 3 && $A == x ]]", True),
        ("[[ $N -gt 9 && $A == x ]]", False),
        ("[ $N -gt 3 ] && [ $A = y ]", False),
        ("[ $N -gt 9 ] || [ $A = x ]", True),
        ("[ $N -gt 3 -a $A = x ]", True),
        ("(( N > 3 && B == 1 ))", True),
        ("(( N > 4 ))", False),
        ("[[ $A == x* ]]", True),
        ('[ "$A" == "x*" ]', False),
        ("test $N -eq 4", True),
        ("! [ $N -eq 4 ]", False),
    ],
)
def test_joined_conditions(condition: str, is_met: bool) -> None:
    """Tests that signs between tests count alike in an `if` and before what they guard."""
    script = f"A=x\nN=4\nB=1\nif {condition}; then\n B=2\nfi\npython a.py --b $B"
    assert words(script)[-1] == ("2" if is_met else "1")
    guarded = f"A=x\nN=4\nB=1\nC=1\nD=1\n{condition} && {{ D=2; }}\n{condition} ||\n C=2\npython a.py --b $D --c $C"
    assert words(guarded)[3::2] == (["2", "1"] if is_met else ["1", "2"])


def test_functions_run_where_they_are_called() -> None:
    """Tests that a function that nobody calls changes nothing, and a call has its arguments and the script's back."""
    text = """
small() {
  TP=1
}
function run {
  if [ -n "$2" ]; then echo no; fi
  python a.py --tp $TP --pp $1 "$@"
}
TP=4
set -- 7
run 8
python b.py --last $1"""
    script = read_script(text)
    assert training_words(script)[2:] == ["--tp", "4", "--pp", "8", "8"]
    assert script.commands[-1] == "python b.py --last 7"
    with pytest.raises(ValueError, match="deep"):
        read_script("f() {\n f\n}\nf")
    with pytest.raises(ValueError, match="statements"):
        read_script(
            "f() {\n f; f\n}\nf".replace("f; f", "g; g")
            + "\n".join(
                f"\n{one}() {{\n {two}; {two}; {two}; {two}; {two}; {two}; {two}\n}}"
                for one, two in zip("ghijklm", "hijklmn", strict=True)
            )
            + "\nf"
        )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (": ${TP:=4}\npython a.py --b $TP", "4"),
        ("let TP=2*2\npython a.py --b $TP", "4"),
        ("TP=2\n((TP *= 3))\npython a.py --b $TP", "6"),
        ("TP=2\n((TP++))\npython a.py --b $TP", "$TP"),
        ("TP=$[2*2]\npython a.py --b $TP", "4"),
        ("TP=2\nunset TP\npython a.py --b ${TP:-1}", "1"),
        ("TP=\npython a.py --b ${TP:-1}${TP-2}${TP:=3}$TP", "133"),
        ("TP=$1\npython a.py --b ${TP:-1}", "1"),
        ("typeset -i TP=4\npython a.py --b $TP", "4"),
        ("A=(2 4 8)\nN=1\npython a.py --b ${A[N+1]}${#A[@]}", "83"),
        ("declare -A A=([7b]=32 [70b]=80)\nM=70b\npython a.py --b ${A[$M]}", "80"),
        ("A=(2)\npython a.py --b ${A[1]}", "${A[1]}"),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:8 # all\npython a.py --b $SLURM_NNODES$SLURM_GPUS_ON_NODE", "48"),
    ],
)
def test_ways_to_set_a_variable(text: str, wanted: str) -> None:
    """Tests that defaults, arithmetic and Slurm's header set variables, and what is not known is set no longer."""
    assert words(text)[-1] == wanted


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        ("for i in 1 2; do TP=$((TP*2)); done", "$TP"),
        ("while [ $TP -lt 8 ]; do TP=$((TP*2)); done", "$TP"),
        ("until [ $TP -ge 8 ]; do TP=$((TP*2)); done", "$TP"),
        ('for each in "$@"; do TP=8; done', "2"),
        ("while [ $# -gt 0 ]; do TP=8; shift; done", "2"),
        ("until true; do TP=8; done", "2"),
        ("while getopts t: flag; do case $flag in t) TP=$OPTARG;; esac; done", "2"),
        ("while true; do if [ -n $1 ]; then TP=$1; fi; done", "2"),
        ("for x in a b; do NAME=$x; done", "2"),
    ],
)
def test_what_loops_set_is_not_decided(loop: str, wanted: str) -> None:
    """Tests that a variable which a loop changes is asked for, and not where nobody gives the loop its arguments."""
    assert words(f"TP=2\n{loop}\npython a.py --b $TP")[-1] == wanted


def test_commands_that_are_not_read_are_named() -> None:
    """Tests that one in a loop is refused with its beginning, and a second one of the same program is told."""
    with pytest.raises(ValueError, match=r"outside of 'python b\.py"):
        words("for x in 1 2; do\n python b.py --tp $x\ndone")
    text = "python p.py --data x\npython a.py --tp 1\npython a.py --tp 2 --pp 2"
    read = read_arguments(text, source="train.sh")
    assert (read.values, read.strange) == ({"tp": "2", "pp": "2"}, ["another command of a.py: python a.py --tp 1"])
    printed = 'run="python a.py --tp 2"\necho ${run} --and-more\neval ${run}\n${run}'
    assert read_arguments(printed, source="train.sh").strange == []


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("srun -N 4 --ntasks-per-node=8 python", "32"),
        ("mpirun -np 16 python", "16"),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nsrun python", "8"),
        ("#SBATCH -N 2\n#SBATCH -n 6\nsrun -l python", "6"),
        ("srun python", None),
        ("#SBATCH --exclusive --nodes=4 --ntasks-per-node=8 # -N 9\nsrun python", "32"),
        ("#SBATCH -N2 --gres=nvme:3,gpu:h100:4\n#SBATCH --ntasks-per-gpu=1\nsrun python", "8"),
        ("#SBATCH --gpus=h100:16 --ntasks-per-gpu=1\nsrun python", "16"),
        ("#SBATCH --nodes=2-4\n#SBATCH --ntasks-per-node=8\nsrun python", None),
        ("#SBATCH --nodes=4\nsrun -N2 --ntasks-per-node 8 python", "16"),
        ("accelerate launch --num_processes 16 --num_machines 2", "16"),
        ("srun -n 16 accelerate launch --num_processes $(nvidia-smi -L | wc -l)", "16"),
        ("accelerate launch --num_processes $N", "--num_processes $N"),
        ("#SBATCH --nodes=2\n#SBATCH --nodes=2-4\n#SBATCH --ntasks-per-node=8\nsrun python", None),
        ("#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 2\nsrun -n 8 python", "8"),
        ("#SBATCH -N 4 --gres=gpu:a:2,nic:1,gpu:b:2\n#SBATCH --ntasks-per-gpu=1\nsrun python", "16"),
        ("#SBATCH --gpus=a100:8,v100:4 --ntasks-per-gpu=1\nsrun python", "12"),
        ("#SBATCH -N 2 --tres-per-node=cpu=8,gres/gpu:h100=8 --ntasks-per-gpu=1\nsrun python", "16"),
        ("#SBATCH -N 2 --tres-per-node=gres/gpu:8 --ntasks-per-gpu=1\nsrun python", "16"),
        ("#SBATCH --gres=shard:8 --ntasks-per-gpu=1\nsrun python", None),
        ("srun -N2 --gres=gpu:a:2,gpu:b:2 --ntasks-per-gpu=1 python", "8"),
        ("srun -G h100:16 --ntasks-per-gpu=1 python", "16"),
        ("#SBATCH --nodelist=n[1-3],m7\n#SBATCH --ntasks-per-node=8\nsrun python", "32"),
        ("#SBATCH -w n[1-4] -N 5 --ntasks-per-node=8\nsrun python", "40"),
        ("#SBATCH --nodelist=./hosts --ntasks-per-node=8\nsrun python", None),
        ("#SBATCH --nodelist=<nodes> --ntasks-per-node=8\nsrun python", None),
        ("#SBATCH --nodelist=$HOSTS --ntasks-per-node=8\nsrun python", None),
        ("#SBATCH --nodelist=n[1-3 -N 3 --ntasks-per-node=8\nsrun python", "24"),
        ("\ufeff#SBATCH -N 2 --ntasks-per-node=8\nsrun python", "16"),
        ("sbatch <<EOF\n#!/bin/sh\n#SBATCH -N 2 --ntasks-per-node=8\nsrun python", "16"),
        ("srun --gpus-per-node=8 --gres=nic:1 -N 2 --ntasks-per-gpu=1 python", "16"),
        ("#SBATCH --nodes=\"2\" --ntasks-per-node='8'\nsrun python", "16"),
        ("#SBATCH -N 2 --ntasks-per-node=8\n\n# comment\nset -e\n#SBATCH -N 4\nsrun python", "16"),
    ],
)
def test_processes_that_slurm_and_mpi_start(start: str, wanted: str | None) -> None:
    """Tests that there are as many devices as a launcher starts processes."""
    read = read_arguments(f"{start} pretrain_gpt.py --bf16 --num-layers 2", source="train.sh")
    assert read.values.get("world_size") == wanted


def test_processes_that_nobody_decides_are_named() -> None:
    """Tests that the launcher's own flag is named, beside a number that is read instead, or as what is missing."""
    counted = "accelerate launch --num_processes $(nvidia-smi -L | wc -l) pretrain_gpt.py --bf16 --num-layers 2"
    (told,) = read_arguments(f"srun -n 16 {counted}", source="train.sh").strange
    assert told.startswith("--num_processes $(nvidia-smi -L | wc -l) (which the script does not decide; give --dev")
    assert read_arguments(counted, source="train.sh").strange == []


HETEROGENEOUS = "#SBATCH -N 1 --ntasks-per-node=8\n#SBATCH hetjob\n#SBATCH -N 2\n"


@pytest.mark.parametrize("start", ["srun", "srun --ntasks-per-node=8", "mpirun", "srun --het-group=0,1 -n 8"])
def test_jobs_of_unlike_parts_are_refused(start: str) -> None:
    """Tests that of a header of several parts, each with its own nodes, no number is read."""
    with pytest.raises(ValueError, match="#SBATCH hetjob: jobs of unlike parts are not read; give one part alone"):
        read_arguments(f"{HETEROGENEOUS}{start} python pretrain_gpt.py --bf16", source="train.sh")


def test_programs_of_unlike_parts_are_refused() -> None:
    """Tests that a launcher that starts several programs, each on processes of its own, is not read as the first."""
    words = "srun -n 8 python pretrain_gpt.py --bf16 : -n 4 python pretrain_gpt.py --bf16"
    with pytest.raises(ValueError, match="the word ':': programs of unlike parts are not read; give one part alone"):
        read_arguments(words, source="train.sh")


def test_a_colon_that_no_launcher_takes_is_a_value() -> None:
    """Tests that only launchers of unlike programs part these by a colon: others hand it on."""
    words = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --log-prefix : --micro-batch-size 2"
    found = read_arguments(words, source="train.sh").values
    assert (found["log_prefix"], found["micro_batch_size"]) == (":", "2")


def test_numbers_beside_a_header_are_read() -> None:
    """Tests that what a command states itself is read whatever Slurm's header leaves open, which keeps its name."""
    text = "torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --bf16"
    for header in (HETEROGENEOUS, "#SBATCH --nodes=2-4\n", "#SBATCH --nodes=1\n#SBATCH -N 2-4\n", ""):
        values = read_arguments(header + text, source="train.sh").values
        assert (values["nproc_per_node"], values["nnodes"]) == ("8", "$SLURM_NNODES")
    bare = "#SBATCH --gres=gpu\ntorchrun --nproc_per_node $SLURM_GPUS_ON_NODE pretrain_gpt.py --bf16"
    assert read_arguments(bare, source="train.sh").values["nproc_per_node"] == "$SLURM_GPUS_ON_NODE"
    assert read_arguments(bare, source="t.sh", given={"SLURM_GPUS_ON_NODE": "4"}).values["nproc_per_node"] == "4"


@pytest.mark.parametrize(
    "word", ["$(cat <<EOF\n--seq-length 8\nEOF\n)", "`cat flags`", '"${A[@]:0:4}"', "${X/--a/--b}"]
)
def test_flags_that_a_shell_would_make_are_named(word: str) -> None:
    """Tests that what stands for flags and is not played is told, and is no part of the value before it."""
    read = read_arguments(f"python a.py --bf16 {word} --lr 1e-4 {word} --seed $(date +%s)", source="train.sh")
    assert read.values == {"bf16": True, "lr": "1e-4", "seed": "$(date +%s)"}
    assert [each.partition("(which")[2] for each in read.strange] == [
        " is not played; give the flags that it makes)"
    ] * 2


def test_a_command_in_brackets_ends_there() -> None:
    """Tests that the bracket behind a command is no value of its last flag."""
    assert read_arguments("( python a.py --seq-length 8 )", source="train.sh").values == {"seq_length": "8"}


def test_arguments_that_are_elsewhere_are_no_values() -> None:
    """Tests that the script's own arguments, and what stands behind a switch or a value, are told."""
    text = 'python a.py --bf16 $EXTRA --load $CKPT --seq-length 8 $MORE --data-path $A $B --no-bias-fusion "$@"'
    read = read_arguments(text, source="train.sh")
    assert [each.split()[0] for each in read.strange] == ["$EXTRA", "$MORE", "$@"]
    assert read.values == {
        "bf16": True,
        "load": "$CKPT",
        "seq_length": "8",
        "data_path": "$A $B",
        "no_bias_fusion": True,
    }


UNKNOWN = ("[ -f x ]", "command -v nvidia-smi", "grep -q H100 gpus", '[ "$(hostname)" = a ]', "[ $SLURM_NNODES -gt 4 ]",
           '[ -n "$HOSTNAME" ]', "[[ $A =~ x ]]", "! [ -d y ]", "(( SLURM_NNODES > 4 ))", "[ -f x ] && [ $N -eq 4 ]",
           "[ $N -eq 9 ] || [ -s z ]", "echo z | grep -q y")  # fmt: skip
"""Conditions that only the machine that runs the script can answer."""


@pytest.mark.parametrize("condition", UNKNOWN)
@pytest.mark.parametrize(
    "form",
    [
        "if {0}; then\n PP=8\nfi",
        "if {0}; then :; else PP=8; fi",
        "if [ $N = 5 ]; then PP=2; elif {0}; then PP=8; fi",
        "{0} || PP=8",
        "{0} && {{ PP=8; }}",
        "{0} && PP=8 || PP=2",
        "f() {{\n PP=8\n}}\nif {0}; then f; fi",
        "if {0}; then export TP=1 PP=8; fi",
        "if {0}; then let PP=2*4; fi",
        "if {0}; then Q=8; fi\nPP=$Q",
    ],
)
def test_what_only_the_machine_knows(condition: str, form: str) -> None:
    """Tests that a variable under such a condition has no value, in any form of it, until one is given by hand."""
    text = f"A=x\nN=4\nPP=4\n{form.format(condition)}\npython a.py --pp $PP --load x"
    assert words(text)[3] in ("$PP", "$Q")
    assert words(text, PP="16", Q="16")[3] == "16"
    assert condition.strip("! ").split(" && ")[0].split(" || ")[-1] in read_script(text).unsure.popitem()[1]


@pytest.mark.parametrize("condition", UNKNOWN)
def test_what_does_not_depend_on_the_machine(condition: str) -> None:
    """Tests that the same value, flags that cost nothing, and what a known part decides are as the script says."""
    text = (
        f"N=4\nPP=4\n{condition} && PP=4\nif {condition}; then MORE='--load x --save y'; exit 1; fi\n"
        f"{condition} && ((NOT_SET++))\n"
        f"if [ $N -eq 5 ]; then {condition} && PP=1; fi\nif [ $N -eq 4 ] || {condition}; then TP=2; fi\n"
        "cd work && CP=1\npython a.py --pp $PP --tp $TP --cp $CP $MORE"
    )
    assert words(text)[2:8] == ["--pp", "4", "--tp", "2", "--cp", "1"]


def test_flags_that_depend_on_the_machine() -> None:
    """Tests that flags added under such a condition are named beside those that are sure, and may be given."""
    text = 'ARGS="--num-layers 2 --bf16"\nif [ -f x ]; then ARGS="$ARGS --fp8-format hybrid"; ARGS+=" --sp"; fi\n'
    read = read_arguments(f"{text}case $(hostname) in h*) V=2;; esac\npython a.py $ARGS --seq-length $V", source="t.sh")
    assert read.values == {"num_layers": "2", "bf16": True, "seq_length": "$V"}
    assert read.strange[0].split()[0] == "$ARGS"
    assert read.script is not None
    assert read.script.unsure == {"ARGS": "[ -f x ]", "V": "case $(hostname)"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            """L=(--layout "'Et\\|tL'")\nC="python t.py ${L[@]} --freq '([0]*3)'"\necho $C\neval $C 2>&1""",
            ["--layout", "Et|tL", "--freq", "([0]*3)", "2>&1"],
        ),
        ("eval 'TP=4'\npython t.py --a $TP", ["--a", "4"]),
        ('run() { N=$1; shift; python t.py --n $N "$@"; }\nrun 2 --b x', ["--n", "2", "--b", "x"]),
        ("set -- 1 2 3 4\nshift 2\npython t.py --a $1 --b $2", ["--a", "3", "--b", "4"]),
    ],
)
def test_words_that_are_read_again(text: str, wanted: list[str]) -> None:
    """Tests that `eval` takes quotes off once more, and `shift` the first arguments."""
    assert words(text)[2:] == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A=($(hosts))", "${#A[@]}"),
        ("A=(`hosts`)", "${#A[@]}"),
        ("A=(1 $NOT_SET)", "${#A[@]}"),
        ("A=(x*)", "${#A[@]}"),
        ("A=({1..4})", "${#A[@]}"),
        ("A=(1 2)\nif [ -f x ]; then A=(1 2 3); fi", "${#A[@]}"),
        ("IFS=,\nA=($NOT_SET 1,2)", "${#A[@]}"),
        ("A=(1)\nA[3]=5", "${#A[@]}"),
        ("A=(1 2)\nunset 'A[0]'", "${#A[@]}"),
        ("A=(1 2)\nread -ra A <<< '1 2 3'", "${#A[@]}"),
        ("A=(1 2)", "2"),
    ],
)
def test_what_has_no_known_number_of_elements(text: str, wanted: str) -> None:
    """Tests that elements are counted only where no shell would make others of them."""
    assert words(f"{text}\npython a.py --a ${{#A[@]}}")[3] == wanted


@pytest.mark.parametrize(
    ("text", "index", "wanted"),
    [
        ("A=(3 $NOT_SET 5)", "0", "3"),
        ("A=(3 $NOT_SET 5)", "2", "${A[2]}"),
        ("A=($(hosts) 5)", "0", "${A[0]}"),
        ("A=(3 4)\nA[1]=5", "1", "${A[1]}"),
        ("declare -A A=([x]=3)\nA[x]=5", "x", "${A[x]}"),
        ("declare -A A=([7b]=3 [8b]=4)", '"8b"', "4"),
    ],
)
def test_an_element_behind_what_is_not_known(text: str, index: str, wanted: str) -> None:
    """Tests that an element is read where its place is sure and nothing set it anew."""
    assert words(f"{text}\npython a.py --a ${{A[{index}]}}")[3] == wanted


@pytest.mark.parametrize(
    ("loop", "is_asked"),
    [
        ("for N in 1 2; do :; done", True),
        ("for ((N=0; N<4; N++)); do :; done", True),
        ('for x in ""; do N=8; done', True),
        ("while [ -z x ] || [ -f y ]; do N=8; done", True),
        ("while\n[ -z x ]\n[ -n x ]\ndo N=8; done", True),
        ("until [ -z x ] && [ -f y ]; do N=8; done", True),
        ("read N", True),
        ("for x; do N=8; done", False),
        ('for x in "${@}"; do N=8; done', False),
        ('for x in "${@:2}"; do N=8; done', False),
        ("for x in $NOT_SET; do N=8; done", False),
        ("while (( $# > 0 )); do N=8; done", False),
        ("while [ -n x ] && [ -z x ]; do N=8; done", False),
        ("until [ -n x ] || [ -f y ]; do N=8; done", False),
        ("if [ -z x ]; then for N in 1 2; do :; done; fi", False),
    ],
)
def test_what_a_loop_leaves(loop: str, is_asked: bool) -> None:
    """Tests that a loop's own variable and what it sets are asked for, unless the loop has no round."""
    assert words(f"N=4\n{loop}\npython a.py --a $N")[3] == ("$N" if is_asked else "4")


def test_a_command_that_a_loop_makes() -> None:
    """Tests that a command set anew in a loop is not read as it was before."""
    text = "C='python a.py --a 1'\nfor x in 2; do C=\"python a.py --a $x\"; done\n$C"
    with pytest.raises(ValueError, match=r"has no command with flags outside of 'C="):
        words(text)


@pytest.mark.parametrize(("text", "wanted"), [("X=$1", []), ("X=", []), ("X=3", ["--a"])])
def test_flags_where_something_is_given(text: str, wanted: list[str]) -> None:
    """Tests that `:+` adds nothing for an empty value or an argument that nobody gives, and `+` for one that is set."""
    assert words(f"{text}\npython a.py ${{X:+--a}} ${{X+--b}}")[2:] == [*wanted, "--b"]
