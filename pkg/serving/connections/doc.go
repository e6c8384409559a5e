// Package connections bounds the connections of a server.
//
//	accepted ─► anonymous: handshake, idle, ─► of a user, who sent ─► closed
//	            requests without a user        the first request
//
// Connections on which nobody has authenticated yet take places of which there
// are so many: for one too many, another one is closed, the oldest of the address
// that has most of them. So newcomers are served, and who opens many connections
// loses his own. A user has so many connections, too: a request on one too many is
// refused, and its connection ends.
//
// A request finds its connection by the local address in its context, which is
// all that http.Server hands on of what a listener accepts.
package connections
