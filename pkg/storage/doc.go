// Package storage makes any Kubernetes registry multi-tenant: it is the
// generic.RESTOptionsGetter whose storage takes the logical cluster of a
// request from its context and works below that cluster's own key prefix.
//
//	registry        keys without a tenant: /core/configmaps/<namespace>/<name>
//	   │
//	tenantStorage   key prefix, annotation, wildcard, continue tokens, dispatch index
//	   │
//	CacheDelegator  the upstream watch cache, one for all logical clusters.
//	   │            Beside it the hub serves watches and pages from what it reads
//	belowCache      what the watch cache must not use of etcd3
//	   │
//	etcd3           the upstream store on the shared client
//
// Package hub serves watches and pages; claims says which objects of which logical
// clusters a request is restricted to; encryption encrypts what etcd stores; usage counts
// it; unreadable records what cannot be read.
// See docs/storage.md for the key layout and for why each piece is there, and
// docs/listwatch.md for the hub.
package storage
