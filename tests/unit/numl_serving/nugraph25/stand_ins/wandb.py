"""The names of wandb that nugraph's annotations and its reports at the end of an epoch mention."""

Table = Html = log = None
