// Package bodies keeps the bodies of requests from costing others anything while
// they come.
//
//	listener ─► Guard ─► … ─► authorization ─► Read ─► limits, fairness ─► handler
//	            a deadline and a              into memory, within
//	            least rate, once it is read   a budget of bytes
//
// A request gets a seat, which others need, when its body is there. Until then it
// costs memory only, of which each user and all together have so much. A body that
// takes too long, or comes too slowly, is given up.
package bodies
