"""What people look at: drawings, tables, pages."""
