// Package packed stores custom resources compactly for watch caches. Objects with the same structure, i.e. the
// same nested field names, share one layout, and each object contains only its values. Equal strings are
// interned. Decoded objects need four times as much memory, mainly for small maps.
package packed
