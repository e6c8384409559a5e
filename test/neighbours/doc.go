// Package neighbours asserts what one tenant can cost the others. A real shard
// has a quiet tenant, with objects and watches, and an attacker, who may do
// everything in a workspace of its own and does the worst that each API allows.
// What is asserted are counts, which do not depend on the machine: series and
// bytes of metrics, bytes of the heap after a garbage collection, and events that
// the quiet tenant gets.
//
//	row          the attacker                                        what the others must not pay
//	load         reads, writes and deletes all the time              requests that fail
//	metrics      makes and deletes groups, keeps many, names         series, or bytes of /metrics
//	             webhooks and policies, asks for what does not exist
//	columns      shows a large field in thousands of columns         bytes allocated, as in the following rows
//	patterns     has regular expressions with large programs, in
//	             definitions, policies and authentication
//	defaults     has defaults added to each of many items
//	alternatives has many items validated with many alternatives
//	invalid      sends objects with 100,000 errors, or large ones
//	keyed        has lists and maps with very many keys
//	patches      inserts into and merges long lists, and has
//	             policies compute patches that repeat an object
//	documents    asks for the OpenAPI documents of many definitions  bytes of the heap
//	conversion   has a conversion webhook that does not answer       seats, or many calls at a time
//	watches      opens all watches that it can, with large           a watch that ends, or is refused, or
//	             selectors too, and writes                           events of others
//	events       sends large events to all its watches               bytes of the heap
//	storage      stores as much as it can                            room in etcd, or writes that are refused
//	rules        binds one user thousands of times to large roles,   bytes of answers, a binding that counts late
//	             asks what he may do, and changes the roles
//	policies     has policies that cost what they may, and deny      service accounts, quotas and workspaces that
//	             everything                                          wait, its own neither
//	types        has large workspace types, and long chains          bytes of the heap
//	replicas     makes what is replicated to the cache server:       room there, replicas that wait
//	             exports, roles
//	cached       has more objects replicated than it may             the same
//	webhooks     has webhooks, admitting and converting, that        bytes that are read or allocated, calls
//	             answer without end, redirect, fail or are           of servers that the attacker could not
//	             servers of others                                   call itself, or with credentials
//	providers    exports an API with webhooks that do not answer      places for calls of their own webhooks and of
//	             and rules that cost too much                        others', or other objects that are refused
//	exports      offers schemas as large as can be, claims           what it was not let see, bytes of documents,
//	             everything, changes an export all the time          copies of schemas, a watch that ends
//	consumers    binds and unbinds, accepts and rejects claims       writes of objects, a watch through the view
//	             over many objects, has many bindings that wait      that ends, copies of schemas
//	hanging      sends writes, as one user and as several, that      places among the requests that execute, or
//	             hang in webhooks of six workspaces                  answers 429 or 5xx
//	paths        asks every server for what it has invented          series of metrics
//	connections  opens connections, anonymous ones and as one user   connections of others
//	floods       resets streams at once, sends headers, pings and    memory, goroutines
//	             settings without end, to every server
//	readers      does not read its answers                           seats, even of its own logical cluster
//	bodies       sends writes whose bodies do not end                seats, even of its own logical cluster
//	homes        fills its home workspace, and workspaces below      room in etcd
//	tokens       has an issuer whose tokens take long to map to      authentication
//	             users, and sends many of them
//	overdue      disconnects from writes that compute for seconds    seats of more such writes, or answers 429
//
// What a row makes goes when it ends, so that rows run in any order, and again and again.
//
// Latency is a figure, not a test: `make neighbours` prints what the quiet
// tenant waits for before and during each row, all of which run then beside its
// requests.
package neighbours
