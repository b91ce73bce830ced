"""The language of transforms: expressions, paths of fields, templates of subjects."""
