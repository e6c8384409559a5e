// Package hub follows the reads of a watch cache from etcd. It serves watches and paginated lists, whose
// cost in the watch cache grows with the number of all watches or objects.
//
//	etcd3 ──► Hub ──► watch cache
//	           │
//	           ├─ tree     objects in key order, copy-on-write: for pages
//	           ├─ history  the latest events: for watches that resume
//	           └─ index    watchers by key prefix and hash range
//
// docs/development/listwatch.md describes it in more detail.
package hub
