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
// Below it, ledger limits what logical clusters and users hold at a time; connections, bodies,
// watchbytes and answers count in it what their names say, and answers ends answers that nobody
// reads. fairness shares a server among logical clusters, inflight limits the requests that execute,
// and watchdog handles requests that compute after their end. features has the feature gates, metriclabels keeps names that tenants
// choose out of metrics, inprocess takes a server's requests to itself past connections, and
// ownership compares whose data is in an etcd before a server uses it. Package chaintest compares
// the chain of a server with the page that shows it.
package serving
