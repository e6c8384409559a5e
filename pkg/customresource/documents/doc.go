// Package documents serves discovery and OpenAPI: what the wrapped handler says
// of the built-in resources, merged with the definitions of the logical cluster.
// Logical clusters with the same set of definitions share the documents.
package documents
