"""Ask for a job's series (``kubectl falcon check --metrics``), and show them as a table, a heat map and a picture."""
