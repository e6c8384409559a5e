// Package customresource serves custom resources, the CustomResourceDefinitions
// that define them, and the discovery and OpenAPI documents that tell of them,
// for all logical clusters of a shard with one upstream handler.
//
//	request ─► Server ──► Source: which definition is served here?
//	              │          system definitions, then the logical cluster's CRDs
//	              ▼
//	          Schema (interned by hash of spec and accepted names)
//	              ▼
//	          upstream CustomResourceDefinition handler, keyed by Schema
//	              ▼
//	          view: runs the schema's codec ─┐
//	          view: another schema          ─┼─► one raw watch cache per resource
//	          view: metadata of everything  ─┘
//
// Package openapidoc makes the OpenAPI documents of schemas, and openapigate is
// asked whether a schema can have one.
//
// Logical clusters with equal definitions share all serving info; resources of
// one name share one watch cache, whatever their schemas. docs/customresources.md
// tells the story in one page.
package customresource
