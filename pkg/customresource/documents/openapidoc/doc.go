// Package openapidoc assembles OpenAPI documents from the built-in document and a part for each definition,
// and serves them.
//
//	definition ─► part: its paths and schemas, compressed
//	definition ─► part ─┐
//	built-in document ──┴─► base ─► document: base and parts, concatenated
//
// A part is created once for all documents that contain it. Therefore a document of 1,000 definitions is cheap
// if one of them changes, and a client that timed out finds its parts when it retries. The parts of a document
// are created in parallel. Requests share the workers part by part, so that they do not wait for complete
// documents of others.
//
// A Library keeps documents and parts. It removes those not read for a while, and the least recently read ones
// if it is full.
package openapidoc
