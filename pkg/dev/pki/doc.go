// Package pki manages a directory of certificate authorities and certificates for a development cluster. It
// creates missing ones, reuses existing ones, renews those about to expire, and rejects corrupt files.
//
// A certificate is stored in <name>.crt and its key in <name>.key, both as PEM. The key is written first: the next
// run completes an interrupted pair. A renewal keeps the key, so that no pair can mismatch, and certificates that a
// renewed authority has signed remain valid.
package pki
