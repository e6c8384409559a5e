// Package hub follows what one watch cache reads from etcd, and serves from it
// what the watch cache serves at a cost that grows with the wrong number:
// watches, and lists in pages.
//
//	etcd3 ──► Hub ──► watch cache
//	           │
//	           ├─ tree     the objects in key order, copied on write: pages
//	           ├─ history  the latest events: watches that resume
//	           └─ index    the watchers by key prefix and hash range: watches
//
// See docs/listwatch.md.
package hub
