// Package apis contains integration tests of exports, bindings, permission claims, virtual workspaces, and replicated objects,
// in clusters that run in the test process.
package apis
