"""Many runs from one file: `spec` reads it, `job` and `scheduler` run it, `results` and `tables` show what came out."""
