"""What is kept and shown: posteriors and their moments, tables, pictures, pages and files."""
