// Package openapidoc makes OpenAPI documents out of what the server says of
// itself and what each definition adds to it, and serves them.
//
//	definition ─► part: the paths and schemas of its own, compressed
//	definition ─► part ─┐
//	built-in document ──┴─► base ─► document: base and parts, one after another
//
// A part is made once, whatever the documents that it is in, so a document of
// a thousand definitions costs little when one of them changes, and a client
// that gives up on the first one finds its parts made when it comes again. The
// parts of one document are made in parallel; requests take turns, part by
// part, so that nobody waits for another's thousand definitions.
//
// Everything is kept in a Library, which forgets what nobody has read for a
// while, and what was read longest ago when it is full.
package openapidoc
