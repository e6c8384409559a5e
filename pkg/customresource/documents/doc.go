// Package documents serves discovery and OpenAPI: the documents of the wrapped handler for built-in resources,
// merged with the definitions of the logical cluster. Logical clusters with the same set of definitions share
// documents.
//
//	openapidoc   assembles OpenAPI documents from one part per definition
//	openapigate  removes parameters with a disabled feature gate
package documents
