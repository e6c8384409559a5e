// Package resource turns descriptions of API resources into storages that a generic API server can install.
//
// A Resource is a table: names, constructors, selectable fields, printer columns, and a Strategy of functions for the
// behavior. A Group contains the resources of one API group and version and registers their types; a Builder creates the
// storages. This package does not depend on any particular resource.
package resource
