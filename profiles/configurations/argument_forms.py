"""Megatron-LM's arguments out of a shell script, a YAML or JSON file, a recipe in Python, or a log's block of them."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiles.configurations.flag_meanings import ALIASES, FOREIGN
from profiles.configurations.megatron_trainers import (
    TrainerArguments,
    is_verl,
    of_mapping,
    other_files,
    slime,
    swift,
    verl,
)
from profiles.configurations.nemo_config import in_megatrons_names, is_nemo
from profiles.configurations.neox_config import is_neox, of_neox
from profiles.configurations.python_recipe import CLASS, ReadRecipe, read_recipe
from profiles.configurations.run_configuration import FORMS
from profiles.configurations.shell_script import Script, other_commands, program_of, read_script, training_words
from profiles.discovery.gres import gpus_asked
from profiles.documents.unique_names import read_json, read_yaml

MAX_TEXT = 4 * 2**20
"""Characters that are read: the arguments are at a log's beginning."""

MAX_LINE = 4096
"""Characters of a line in a log; no argument is longer."""

_LOGGED = re.compile(r"^.*?(?<![\w.])(\w+) \.{3,} (\S.*?) *$", re.MULTILINE)
_WHOLE = re.compile(r"\[?(\d+)(?:\.0)?\]?")
"""A whole number as DeepSpeed's fork writes some: `[1]` experts of all blocks, stage `1.0`."""
_DECORATION = re.compile(r"(?:\x1b|\\u001b)\[[\d;]*[mK]| \[repeated \d+x across cluster\]|(?:\\r)?\\n\"\s*[,}].*")
"""Colours, what Ray adds to a line that other processes print as well, and what containers' logs put behind one."""
_OVERRIDE = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_END = {"|", "|&", "&", ")"}
_REDIRECTION = re.compile(r"(?:\d?|&)(?:>>?|<{1,3})(.*)", re.DOTALL)
"""Of output or input; what follows at once, or else the next word, is a file."""
_MORE_FLAGS = re.compile(r"\$\{?(\w*(?:ARG|OPT|FLAG|PARAM)\w*)(?:\[[@*]\])?\}?", re.IGNORECASE)
"""An array or a string of flags that the script does not set."""
_UNSET = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_SUBSTITUTED = re.compile(r"\$[({]|`")
"""Begins what a shell puts something else in the place of."""
_SHORT_FLAG = re.compile(r"-(?![A-Za-z]{1,2}$)[^-\d.\s]\S*")
"""What argparse takes for no value."""
_SWITCH = re.compile(
    r"(?:no|use|disable|enable|overlap|untie|apply|bf16|fp16|swiglu|sequence_parallel|group_query)(?:_.*)?"
)
"""Names that take no value."""
_SAMPLES = re.compile(r"data|path|blend")
"""Names that take several values."""
_STATED_ONCE = (
    "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "num_moe_experts",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "micro_batch_size", "global_batch_size", "devices", "seq_length",
)  # fmt: skip
"""Names that mean another model, or another cluster, where a second section has them."""
_OF_MEGATRON = re.compile("|".join((*_STATED_ONCE, "bf16", "fp16", "parallel", "[tp]p_", "pipeline")))
_OWN_FLAGS = re.compile(
    r"num.(?:layers|query)|hidden.size|kv.channels|parallel.size|micro.batch|global.batch|recipe|pretrain_"
)
"""Of which a command of Megatron-LM's has one or more."""
_RECIPES = ("recipe", "model_recipe_name")
"""Flags that name a recipe of Megatron-Bridge's, beside which overrides stand."""
_RANKS = ("srun", "mpirun", "mpiexec")
"""Launchers that start a process for every device."""
_RANK_FLAGS = {
    "n": "ntasks", "np": "ntasks", "N": "nnodes", "nodes": "nnodes", "G": "gpus", "tasks_per_node": "ntasks_per_node",
    "gres": "gpus_per_node", "tres_per_node": "gpus_per_node",
}  # fmt: skip
_SLURM = ("nnodes", "ntasks", "ntasks_per_node", "gpus", "gpus_per_node", "ntasks_per_gpu")
_VARIABLE = re.compile(
    r"\$\{(?:oc\.env:|env:)?(?P<name>\w+)(?:[:,][-=]?(?P<other>[^{}]*))?\}|\$(?P<plain>[A-Za-z_]\w*)"
)
_PRETRAINED = re.compile(r"from_hf_pretrained\(['\"]([^'\"]+)")
"""Where a recipe names its model."""
_LAUNCHER = ("nproc_per_node", "nnodes")
_FLAG = re.compile(r"(?:^|\s)--[a-z][\w-]+")
_KERNELS = re.compile(r"\b((?:NVTE|FLASH_ATTENTION)_\w+)\W{0,4}(?:value\W{0,4})?[=:]\W{0,4}(\d+)\b")
"""A variable by which a library chooses kernels, with its value, in a command, YAML or JSON."""
_PROVIDER = re.compile(r'"_target_": "([\w.]*Provider\w*)"')
"""Class of Megatron-Bridge whose defaults are a model's."""
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

Value = str | bool
"""What stands behind a flag: words joined by blanks, or true for a flag alone."""


@dataclass(slots=True, kw_only=True)
class ReadArguments:
    """The arguments that a file states."""

    values: dict[str, Value]
    """By name, with underscores."""
    kind: str
    """`script`, `mapping`, `recipe`, `log` or `options`."""
    program: str = ""
    """The Python file that is started, where a command names it."""
    flags: Sequence[str] = ()
    """As they are spelled behind it."""
    unread: Sequence[str] = ()
    """What of a recipe, or in other files, was not read."""
    imported: Sequence[str] = ()
    """Files from which a recipe's functions come, beside its own."""
    trainer: TrainerArguments | None = None
    """Of a trainer with names of its own, what it was told."""
    strange: list[str] = field(default_factory=list)
    """What is neither a flag nor the value of one, as it is told."""
    script: Script | None = None
    """The launch script around the arguments."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment by which libraries choose their kernels."""
    has_own_flags: bool = True
    """Whether a command states a size, a degree or a batch by a name of Megatron-LM's."""


def read_arguments(
    text: str,
    *,
    source: str,
    given: Mapping[str, str] | None = None,
    function: str | None = None,
    place: Path | None = None,
) -> ReadArguments:
    """Find out which form it is and read it; `given` are variables of its environment, `function` is a recipe's name,
    and `place` where it lies on the disk.

    Raises ValueError with the source's name where there are no arguments.
    """
    if source.endswith(".py"):
        return _read_recipe(read_recipe(text[:MAX_TEXT], function=function, source=source, place=place), source=source)
    text = text[:MAX_TEXT]
    short = "\n".join(_DECORATION.sub("", line) for line in text.splitlines() if len(line) < MAX_LINE)
    logged = _LOGGED.findall(short)
    if len(logged) >= 5:
        return ReadArguments(values=_named(_of_one_run(logged, source=source)), kind="log")
    if (mapping := _mapping(text, source=source)) is not None:
        return _read_mapping(mapping, source=source, given=given or {}, is_class="_target_" in text)
    try:
        script = read_script(text, given=given)
        words = training_words(script)
    except ValueError as reason:
        raise ValueError(f"{source}: {reason}") from None
    _require_known_trainer(words, source=source)
    found = read_words(words, environment=script.variables)
    found.script = script
    found.kernels = dict(_KERNELS.findall("\n".join([*(f"{k}={v}" for k, v in script.variables.items()), *words])))
    found.strange += other_commands(script, words)
    if found.program.startswith("megatron "):
        found.trainer = swift(found.values, command=found.program.partition(" ")[2], environment=script.variables)
    elif "rollout_batch_size" in found.values:
        found.trainer = slime(found.values)
    elif "model_name_or_path" in found.values:
        found.trainer = of_mapping(found.values)
    found.has_own_flags = found.trainer is not None or any(map(_OWN_FLAGS.search, words))
    if found.trainer is not None:
        found.values = _named(found.trainer.values)
    return found


def _require_known_trainer(words: Iterable[str], *, source: str) -> None:
    """Raise ValueError with its name where words or names are of a trainer that is not read."""
    text = " ".join(words)
    for trainer, pattern in FOREIGN.items():
        if (match := re.search(rf"(?<!\w)(?:{pattern})(?!\w)", text)) is not None:
            raise ValueError(
                f"{source}: {match[0][:60]} is {trainer}'s, whose configurations are not read; give a file of {FORMS}"
            )


def _read_mapping(
    mapping: Mapping[str, Any], *, source: str, given: Mapping[str, str], is_class: bool
) -> ReadArguments:
    """A YAML or JSON document: Megatron's names, or those of another trainer around it."""
    is_log = "_wandb" in mapping  # which keeps what a run was told, each value in a section
    if is_log:
        mapping = {name: each["value"] for name, each in mapping.items() if isinstance(each, dict) and "value" in each}
    stated = json.dumps(mapping, default=str)
    _require_known_trainer(re.findall(r'"([^"]+)": ', stated), source=source)
    trainer = of_mapping(mapping)
    if trainer is not None:
        trainer = replace(trainer, model=_expanded(trainer.model, given))
        mapping, files = trainer.values, [_expanded(file, given) for file in trainer.elsewhere]
    else:
        files = other_files(mapping)
        mapping = in_megatrons_names(mapping) if is_nemo(mapping) else of_neox(mapping) if is_neox(mapping) else mapping
    leaves = _flat(mapping, source=source, given=given)
    if "gated_linear_unit" not in leaves:  # which a class of Megatron-Bridge has, and writes down with all it has
        files = [*files, *_PROVIDER.findall(stated)]
    if trainer is None and not files and not any(map(_OF_MEGATRON.search, _named(leaves))):
        commands = [name for name, value in leaves.items() if isinstance(value, str) and _FLAG.search(value)]
        remedy = f"give what stands in {commands[0]} as a script" if commands else f"give a file of {FORMS}"
        raise ValueError(f"{source}: states no size, degree or batch by Megatron-LM's names; {remedy}")
    is_configuration = is_class or "num_kv_heads" in leaves
    return ReadArguments(
        values=_fields(leaves) if is_configuration else _named(leaves),
        kind="log" if is_log else "mapping",
        unread=[f"what {file} sets" for file in files],
        trainer=trainer,
        kernels=dict(_KERNELS.findall(stated)),
    )


def _read_recipe(recipe: ReadRecipe, *, source: str) -> ReadArguments:
    """Megatron-Bridge's; its precision may be what a function of another file makes, which has its name."""
    values = _fields(_flat(recipe.sections, source=source, given={}))
    plugged = ("mixed_precision = ", "trainer.plugins = ")  # of Bridge and of NeMo
    made = [text.partition(" = ")[2] for text in recipe.unread if text.startswith(plugged)]
    outer = recipe.sections.get("trainer")
    section = recipe.sections.get("mixed_precision") or (outer.get("plugins") if isinstance(outer, dict) else None)
    if isinstance(section, list):
        section = next((each for each in section if isinstance(each, dict) and "grad_reduce_in_fp32" in each), None)
    if isinstance(section, dict) and not (name := str(section.get(CLASS, "C"))).rpartition(".")[2][:1].isupper():
        made.append(name)  # a class's fields say it themselves
    if made or section is not None:  # it overrules what buffers of gradients are told
        names = [each for each in (*made, section) if isinstance(each, str)]
        is_long = not any("fp16" in each for each in names)  # no other one by name adds up in its own type
        told = section if isinstance(section, dict) else {}
        values["grad_reduce_in_fp32"] = told.get("grad_reduce_in_fp32", is_long)
    if made:
        values["mixed_precision"] = made[-1]
    unread = tuple(each for each in recipe.unread if not any(text in each for text in made))
    models = [match[1] for each in unread if (match := _PRETRAINED.search(each))]
    own: dict[str, Value] = {}
    if re.search(r"^what |^optim = distributed_", "\n".join(unread), re.MULTILINE):  # others' beginnings do so, too
        own = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
    bridge = TrainerArguments(trainer="Megatron-Bridge", values=values, model=models[0] if models else "", own=own)
    return ReadArguments(values=values, kind="recipe", unread=unread, imported=recipe.imported, trainer=bridge)


def read_words(words: Sequence[str], *, environment: Mapping[str, str] | None = None) -> ReadArguments:
    """Flags with their values, and overrides `model.tensor_model_parallel_size=4`.

    What stands before a Python file is its launcher's; of that the numbers of processes are kept.
    """
    words = list(_parted(_without_redirections(words)))
    place, program = program_of(words) or (-1, "")
    strange, unset, name, flags = list[str](), list[str](), "", list[str]()
    values = _launched(words[: max(0, place)], environment or {}, unset=unset)
    if ":" in words and any(word.rpartition("/")[2] in _RANKS for word in words):
        raise ValueError("the word ':': programs of unlike parts are not read; give one part alone")
    overrides: dict[str, Value] = {}
    for word in words[place + 1 :]:
        if word in _END:
            break
        if more := _MORE_FLAGS.fullmatch(word):
            unset.append(f"${more[1]} (flags that the script does not decide; give --set {more[1]}='...')")
        elif word in ("$@", "$*"):
            unset.append(f"{word} (the script's own arguments; those that cut or size the model are options here)")
        elif (more := _UNSET.fullmatch(word)) and (not name or _takes_no_more(name, values.get(name))):
            unset.append(
                f"${more[1]} (which the script does not decide; give --set {more[1]}='...', or nothing behind the = )"
            )
        elif _SUBSTITUTED.match(word) and (not name or _takes_no_more(name, values.get(name))):
            unset.append(f"{word[:60]} (which is not played; give the flags that it makes)")
        elif match := _OVERRIDE.fullmatch(word):
            overrides[match[1]] = match[2]
            name = ""
        elif re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            flags.append(f"--{name}")
            name = _plain(name)
            values[name] = value if equals else True
        elif _SHORT_FLAG.fullmatch(word):
            raise ValueError(f"{word[:60]}: begins as a flag does; write two dashes, or --NAME={word[:40]} for a value")
        elif name:
            before = values[name]
            values[name] = word if before is True else f"{before} {word}"
        else:
            strange.append(word)
    others = [] if program else [f"the word {word[:60]!r}" for word in strange]
    trainer = verl(overrides) if is_verl(overrides) else None
    if trainer is not None:
        values |= trainer.values
    else:
        values |= _by_last_names(overrides)
    recipes = [f"what the recipe {values[each]} sets" for each in _RECIPES if values.get(each)]
    return ReadArguments(
        values=_named(values),
        kind="script",
        program=program,
        flags=flags,
        strange=[*others, *unset],
        trainer=trainer,
        unread=recipes,
    )


def _by_last_names(overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Overrides without their sections; raises ValueError where two sections state sizes or degrees that differ."""
    found: dict[str, tuple[str, Value]] = {}
    for full, value in overrides.items():
        name = _plain(full.rpartition(".")[2])
        before, other = found.setdefault(name, (full, value))
        if name in _STATED_ONCE and other != value:
            raise ValueError(f"{before} = {other}, {full} = {value}: differ; leave out what is said of other models")
        found[name] = full, value
    return {name: value for name, (_, value) in found.items()}


def _takes_no_more(name: str, value: Value | None) -> bool:
    """Whether a flag is a switch, or has its value."""
    return value is not None and (_SWITCH.fullmatch(name) is not None if value is True else not _SAMPLES.search(name))


def _started(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Value]:
    """The processes that Slurm or MPI starts, as their flags say, or Slurm's header."""
    if not any(word.rpartition("/")[2] in _RANKS for word in words):
        return {}
    found = {name: value for name in _SLURM if (value := environment.get(f"SLURM_{name.upper()}")) is not None}
    for word, follows in pairwise((*words, "")):
        if joined := re.fullmatch(r"-([nNG])(\d+)", word):
            found[_RANK_FLAGS[joined[1]]] = joined[2]
        elif word.startswith("-"):
            name, _, value = _plain(word).partition("=")
            known, value = _RANK_FLAGS.get(name, name), value or follows
            if value := gpus_asked(name, value) if known in ("gpus", "gpus_per_node") else value:
                found[known] = value
    nodes, gpus = found.get("nnodes", "1"), found.get("gpus")
    all_gpus = (nodes, found.get("gpus_per_node", "")) if gpus is None else (gpus,)
    factors_of = {"ntasks": (), "ntasks_per_gpu": all_gpus, "ntasks_per_node": (nodes,)}
    factors = next(([found[name], *more] for name, more in factors_of.items() if name in found), [""])
    is_known = all(map(str.isdecimal, factors))
    if "SLURM_HET_SIZE" in environment and (not is_known or {"het_group", "pack_group"} & found.keys()):
        raise ValueError("#SBATCH hetjob: jobs of unlike parts are not read; give one part alone")
    return {"world_size": str(math.prod(map(int, factors)))} if is_known else {}


def _launched(words: Sequence[str], environment: Mapping[str, str], *, unset: list[str]) -> dict[str, Value]:
    """The numbers of processes that a launcher is told; of all, beside others, an open one is noted as `unset`."""
    values: dict[str, Value] = {}
    for word, follows in pairwise((*words, "")):
        if re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            values[_plain(name)] = value if equals else True if follows.startswith("-") else follows
    is_open = not str(values.get("num_processes", 1)).isdecimal()
    total = f"--num_processes {values.pop('num_processes')}" if is_open else ""
    told = {key: value for key, value in _named(values).items() if key in (*_LAUNCHER, "world_size")}
    told = told or _started(words, environment)
    if total and told:
        unset.append(f"{total} (which the script does not decide; give --devices)")
    return told or ({"world_size": total} if total else {})


def _without_redirections(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if (match := _REDIRECTION.fullmatch(word)) is None:
            yield word
        elif not match[1]:
            next(rest, None)


def _parted(words: Iterable[str]) -> Iterator[str]:
    """An array's element may hold a flag and its value: `"--fp8-format hybrid"`."""
    for word in words:
        yield from word.split() if re.match(r"--[A-Za-z][\w-]* ", word) else (word,)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _named(values: Mapping[str, Value]) -> dict[str, Value]:
    """By the names that are read; a name and its alias are one, and the name itself counts."""
    aliased = {ALIASES[name]: value for name, value in values.items() if name in ALIASES}
    own = {name: value for name, value in values.items() if name not in ALIASES}
    if values.get("num_key_value_heads", False) is not False:  # which needs no switch
        aliased["group_query_attention"] = True
    return {**own, **{name: value for name, value in aliased.items() if own.get(name, False) is False}}


def _fields(values: Mapping[str, Value]) -> dict[str, Value]:
    """Those of a configuration class, where groups of queries count without the switch that flags have for them."""
    named = _named(values)
    return {"group_query_attention": bool(named.get("num_query_groups")), **named}


def _of_one_run(logged: Iterable[tuple[str, str]], *, source: str) -> dict[str, Value]:
    """Every rank may print the block; raises ValueError for the blocks of two runs, and for the part of one."""
    values: dict[str, Value] = {}
    for name, text in logged:
        whole = _WHOLE.fullmatch(text)
        value: Value = whole[1] if whole else {"True": True, "False": False, "None": False}.get(text, text)
        first = values.setdefault(name, value)
        if name in (*_STATED_ONCE, "world_size") and first != value:
            raise ValueError(f"{source}: {name} is {first} in one block and {value} in another; give one run's log")
    degrees = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "global_batch_size"}
    if missing := sorted(degrees - values.keys()):
        raise ValueError(f"{source}: its block of arguments has no {missing[0]}, so it is a part of one; give it whole")
    return values


def _mapping(text: str, *, source: str) -> Mapping[str, Any] | None:
    """A YAML or JSON document with names in it; None: it is something else."""
    is_yaml = source.lower().endswith((".yaml", ".yml"))
    if not is_yaml and not source.lower().endswith(".json") and not text.lstrip().startswith("{"):
        return None
    try:
        documents = read_yaml(text) if is_yaml else [read_json(text)]
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("; ")[0][:100]
        raise ValueError(f"{source}: is neither JSON nor YAML ({reason}); correct it") from None
    found = documents[0] if len(documents) == 1 else None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{source}: has no names with values; give Megatron's arguments as a mapping")
    return found


def _flat(mapping: Mapping[str, Any], *, source: str, given: Mapping[str, str]) -> dict[str, Value]:
    """Values by name; raises ValueError where two sections state sizes or degrees that differ."""
    found = dict[str, Value]()
    for name, value in _leaves(mapping, source=source, given=given, seen=set()):
        if name in _STATED_ONCE and (other := found.get(name, False)) is not False and value not in (False, other):
            raise ValueError(
                f"{source}: {name} is {str(other)[:40]} in one section and {str(value)[:40]} in another; "
                "make them equal, or leave out the sections of other models"
            )
        is_kept = name == "use_distributed_optimizer" and found.get(name) is True  # one is both, in Bridge
        found[name] = is_kept or value
    return found


def _leaves(
    mapping: Mapping[str, Any], *, source: str, given: Mapping[str, str], seen: set[int]
) -> Iterator[tuple[str, Value]]:
    """Sections are looked into, each once; a layout may be a list of lists of kinds of layers.

    Single values by names in capitals belong to what starts the program.
    """
    seen.add(id(mapping))
    for key, value in mapping.items():
        name = _plain(str(key))
        if name.startswith("_") or name.upper() == "ENV_VARS" or (name.isupper() and not isinstance(value, dict)):
            continue
        if isinstance(value, dict):
            if id(value) not in seen:
                yield from _leaves(value, source=source, given=given, seen=seen)
        elif name == "pipeline_model_parallel_layout" and isinstance(value, list):
            yield name, _layout_of(value, source=source)
        elif isinstance(value, list):
            yield name, _expanded(" ".join(map(str, value)), given)
        else:
            yield name, value if isinstance(value, bool) else False if value is None else _expanded(str(value), given)


def _expanded(text: str, given: Mapping[str, str]) -> str:
    """Variables of the environment by their values or defaults, and without the quotes that a shell would take off."""
    known = _VARIABLE.sub(
        lambda found: given.get(found["name"] or found["plain"], found["other"] or found[0]), text.strip()
    )
    return known[1:-1] if len(known) > 1 and known[0] == known[-1] and known[0] in "'\"" else known


def _layout_of(rows: Sequence[Any], *, source: str) -> str:
    """`[["embedding", "decoder"], ["loss"]]` as `Et|L`; raises ValueError for other words."""
    stages = []
    for row in rows:
        words = [str(word).strip() for word in row] if isinstance(row, list) else list(str(row))
        letters = [_LETTERS.get(word.lower(), word if word in _LETTERS.values() else "") for word in words]
        if "" in letters:
            raise ValueError(
                f"{source}: pipeline_model_parallel_layout has {words[letters.index('')]!r}; "
                f"write {', '.join(_LETTERS)}"
            )
        stages.append("".join(letters))
    return "|".join(stages)
