// Package customresource serves custom resources, the CustomResourceDefinitions
// that define them, and the discovery and OpenAPI documents that tell of them,
// for all logical clusters of a shard with one upstream handler.
//
//	request ─► Server ──► definitions.Sources: which definition is served here?
//	             │
//	             ├─ resource ──► synthetic lister ─► upstream handler, keyed by Schema
//	             │                                     └─► versions: views of one raw
//	             │                                         store for each resource,
//	             │                                         of packed objects
//	             └─ /apis, /openapi ─► documents
//
// The package itself joins these; patterns bounds what is kept of compiled patterns, and
// customresourcetest helps to test all of it.
// docs/customresources.md tells the story in one page.
package customresource
