"""Options, declared as the help shows them: tests of api/cli/options/declare.py."""

from api.cli.options.declare import argument, count, option


def test_an_option_is_declared_as_the_help_shows_it():
    """Tests that names and what stands for the value are taken from one text."""
    made = option("--output -o FILE|-", "Where it goes.", panel="Output", min=1)
    assert (made.default, made.param_decls, made.metavar, made.help) == (
        "--output",
        ("-o",),
        "FILE|-",
        "Where it goes.",
    )
    assert (made.rich_help_panel, made.min, made.envvar) == ("Output", 1, None)
    assert option("--keys/--no-keys", "Ask.").metavar is None


def test_the_variable_that_stands_in_is_not_in_the_help():
    """Tests that the environment is read and the help does not say so."""
    made = option("--port N", "To listen on.", envvar="PORT")
    assert (made.envvar, made.show_envvar) == ("PORT", False)


def test_counts_and_arguments():
    """Tests that a count begins at one, and that an argument without a value has no default in the help."""
    assert (count("--pp", "Degree.", panel="Cut").min, argument("PLAN", "A plan.").show_default) == (1, False)
