// Package resource turns descriptions of API resources into storages that a
// generic API server can install.
//
// A Resource is a table: names, constructors, selectable fields, printer
// columns, and a Strategy of plain functions for what is behaviour. A Group
// lists the resources of one API group and version and knows how to register
// their types; a Builder makes the storages. Nothing here knows a particular
// resource.
package resource
