// Package serving holds what all Shardplane servers that store objects share:
// the options of the secure listener, the construction of the generic API
// server's configuration, and the filters of their chains.
//
//	Chain = Arrival + what finds the scope + Reception + WithEntry + Decision + limits and rules
//
// Each server lists its own from these parts; docs/chains.md shows them. Scopes
// takes the scope off the URL, so that everything behind sees a plain Kubernetes
// path, and answers, after authorization, what nothing in the scope serves.
//
// Below it, connections bounds those of each user and those of nobody yet, fairness shares a server among logical clusters, inflight bounds how
// many requests there are at a time, bodies reads what they bring before they take
// anything that others need, answers gives up what nobody reads, budget counts what several share, watchbytes bounds what watches hold of large events,
// watchdog handles requests that go on computing after their end,
// metriclabels keeps names that tenants choose out of metrics, inprocess takes a server's requests to itself past connections, and ownership
// compares whose the data in an etcd is before a server uses it. Package chaintest
// compares the chain of a server with the page that shows it.
package serving
