// Package documents serves discovery and OpenAPI: what the wrapped handler says
// of the built-in resources, merged with the definitions of the logical cluster.
// Logical clusters with the same set of definitions share the documents.
//
//	openapidoc   puts OpenAPI documents together from a part for each definition
//	openapigate  takes out of them what feature gates have switched off
package documents
