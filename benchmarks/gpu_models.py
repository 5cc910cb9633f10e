"""The five models that are profiled on GPUs, and tiny ones in their place for a try on a CPU."""

MODELS = {
    "gpt2-xl": ("gpt:layers=48,width=1600,heads=25,sequence=1024", "4,2,1"),
    "llama3-8b": ("llama:layers=32,sequence=4096", "4,2,1"),
    "vit-l": ("vit:layers=24,width=1024,heads=16,batch=64", "64,32,16"),
    "resnet152": ("resnet:layers=152,batch=64", "64,32,16"),
    "mixture-64-experts": ("mixture:layers=1,experts=64,sequence=1024", "4,2,1"),
}
"""Name, family with its settings, microbatch sizes."""

PACED = ("mixture-64-experts", "resnet152")
"""Those whose layers the host sets the pace of."""

TINY = {
    "gpt2-xl": ("gpt:layers=3,width=32,heads=2,sequence=16,vocabulary=64", "4,2,1"),
    "llama3-8b": ("llama:layers=3,width=32,heads=4,groups=2,inner=48,sequence=16,vocabulary=64", "4,2,1"),
    "vit-l": ("vit:layers=3,width=32,heads=2,image=32,classes=8", "4,2,1"),
    "resnet152": ("resnet:layers=50,width=4,image=64,classes=8", "4,2,1"),
    "mixture-64-experts": ("mixture:layers=1,width=32,heads=2,inner=16,experts=8,sequence=16,vocabulary=64", "4,2,1"),
}
"""The same families, small enough for a second."""
