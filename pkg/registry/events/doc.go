// Package events describes events, which two API groups show in different
// shapes: core/v1, and events.k8s.io/v1 with other field names and stricter
// rules. They are stored once, as core/v1, for an hour.
package events
