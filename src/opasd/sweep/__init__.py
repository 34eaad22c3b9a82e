"""Many runs from one file: planned (`spec`), as commands (`commands`), made (`running`), in a table (`results`)."""
