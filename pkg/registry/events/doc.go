// Package events describes events, which two API groups serve in different forms: core/v1, and events.k8s.io/v1 with other
// field names and stricter rules. They are stored as core/v1, for an hour.
package events
