// Package pki manages a directory of certificate authorities and certificates for a development cluster. It
// creates missing ones, reuses existing ones, renews those about to expire, and rejects corrupt files.
//
// A certificate is stored in <name>.crt and its key in <name>.key, both as PEM. The key is written first: if
// a run is interrupted, the next run completes the pair. A renewal keeps the key. Therefore an interrupted
// renewal does not leave a mismatched pair, and certificates that a renewed authority has signed remain valid.
package pki
