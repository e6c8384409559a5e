// Package customresource serves custom resources, CustomResourceDefinitions, and the discovery and OpenAPI
// documents that contain them, for all logical clusters of a shard with one upstream handler.
//
//	request ─► Server ──► definitions.Sources: which definition is served here?
//	             │
//	             ├─ resource ──► synthetic lister ─► upstream handler, keyed by Schema
//	             │                                     └─► versions: a store for each version
//	             │                                         of a schema, on one raw store for
//	             │                                         each resource, of packed objects
//	             └─ /apis, /openapi ─► documents
//
// Package patterns limits compiled patterns. See docs/development/customresources.md for an overview.
package customresource
