// Package fairness shares a server among logical clusters: when requests ask
// for more than the server can do at a time, they wait in a queue per logical
// cluster, and each logical cluster gets the same share of the server's time.
//
//	authorization ─► Fairness.Wrap ─► exempt?  ─────────────────────► handler
//	                                └► estimate seats ─► Queue ─► seat ─┘
//	                                         ▲                     │
//	                                         └── what it has cost ◄┘
//
// It is upstream's API Priority and Fairness with other parts: the filter is
// upstream's, which knows watches and how to refuse; the queue and the estimates
// of what requests cost are ours, since upstream's add up the objects and watches
// of all logical clusters, and its queues are shared by chance among flows. Here
// a flow is what reads or what writes in a logical cluster, and has a queue of
// its own.
//
// How much a flow gets depends on whether others send requests as well, see
// flow.go and queue.go. A request that waits for a webhook gives its seat away meanwhile.
//
// The filter stands behind authorization, so that nobody can fill the queue of
// a logical cluster in which he may do nothing. The bounds of requests in flight
// of a logical cluster and of a user stand before it; the server's stands behind
// it, since what waits takes nothing that others need.
package fairness
