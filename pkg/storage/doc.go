// Package storage makes any Kubernetes registry multi-tenant. It is a generic.RESTOptionsGetter
// whose storage takes the logical cluster of a request from the context and prefixes all keys with it.
//
//	registry        keys without a tenant: /core/configmaps/<namespace>/<name>
//	   │
//	tenantStorage   key prefix, annotation, wildcard, continue tokens, dispatch index
//	   │
//	CacheDelegator  upstream's watch cache, one for all logical clusters. The hub next to
//	   │            it follows its list and watch, and serves watches and pages
//	belowCache      disables features of etcd3 that the watch cache must not use
//	   │
//	etcd3           upstream's store on the shared client
//
// Package hub serves watches and pages, claims restricts requests to claimed objects, encryption
// encrypts stored values, usage counts them, and unreadable records objects that cannot be read.
// docs/storage.md describes the key layout, and docs/development/listwatch.md the hub.
package storage
