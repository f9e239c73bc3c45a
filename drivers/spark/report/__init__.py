"""The fleet report: facts gathered by Spark, figures drawn by Matplotlib, and one page that needs nothing else."""
