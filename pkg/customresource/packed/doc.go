// Package packed keeps custom resources in little memory, for watch caches. How an object is
// built, which is all names of its fields and how they are nested, is kept once for all
// objects that are built alike, and of each object the values only, of which equal texts are
// kept once, too. Decoded objects take four times as much, most of it for small maps.
package packed
