// Package answers keeps clients that read their answers slowly, or not at all,
// from costing others anything.
//
//	listener ─► WithGuard ─► … ─► WithStreams ─► … ─► limits, fairness ─► WithPause ─► handler
//	            a time for        of watches,         a seat, which waits
//	            answers           for each write      for nobody's reading
//
// What cannot be written waits in the memory of the server and in its goroutine.
// It is given up after a time. Until then it has no seat, and its bytes are bounded of each
// user and in all. The front-proxy, which forwards answers of others, has WithForwarded in place
// of WithPause.
package answers
