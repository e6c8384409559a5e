package serving

import (
	"context"
	"fmt"
	"sync"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	auditbuffered "k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/klog/v2"
)

const flagAuditBufferBytes = "audit-webhook-batch-buffer-bytes"

// auditStop is how long a server that stops waits for the last events to be
// taken.
const auditStop = 10 * time.Second

// auditBatches is upstream's buffer in front of a webhook, with bounds that
// upstream's has not: batches are taken off its buffer at once and wait in
// goroutines of their own, for minutes each while the webhook hangs; its places
// are for events of any size; and a stop waits for all of them.
type auditBatches struct {
	audit.Backend

	held *auditHeld
	// abandon ends the calls of the webhook.
	abandon context.CancelFunc
}

// newAuditBatches returns the buffer of c in front of the webhook, which holds as
// many events as it has places, and maxBytes of them, on the way to the webhook
// included.
func newAuditBatches(webhook audit.Backend, c auditbuffered.BatchConfig, maxBytes int64, abandon context.CancelFunc) audit.Backend {
	held := &auditHeld{maxEvents: c.BufferSize, maxBytes: maxBytes}
	return &auditBatches{Backend: auditbuffered.NewBackend(auditSent{webhook, held}, c), held: held, abandon: abandon}
}

// ProcessEvents implements audit.Sink. It never waits.
func (b *auditBatches) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, event := range events {
		if err := b.held.add(event); err != nil {
			audit.HandlePluginError(auditbuffered.PluginName, err, event)
			continue
		}
		b.Backend.ProcessEvents(event)
	}
	return true
}

// Shutdown implements audit.Backend.
func (b *auditBatches) Shutdown() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Backend.Shutdown()
	}()
	select {
	case <-ended:
	case <-time.After(auditStop):
		klog.ErrorS(nil, "The audit webhook does not take the last events, which are lost", "events", b.held.number(), "waited", auditStop)
	}
	b.abandon()
}

// auditSent is a webhook that says when events have left it.
type auditSent struct {
	audit.Backend

	held *auditHeld
}

// ProcessEvents implements audit.Sink.
func (s auditSent) ProcessEvents(events ...*auditinternal.Event) bool {
	defer s.held.remove(events)
	return s.Backend.ProcessEvents(events...)
}

// auditHeld are the events that wait for the webhook, and those on their way to it.
type auditHeld struct {
	maxEvents int
	maxBytes  int64

	mu     sync.Mutex
	events int
	bytes  int64
}

// add counts an event, or returns why it does not fit.
func (h *auditHeld) add(event *auditinternal.Event) error {
	size := auditSize(event)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events >= h.maxEvents {
		return fmt.Errorf("%d events wait for the webhook, as many as --audit-webhook-batch-buffer-size allows", h.events)
	}
	if h.bytes+size > h.maxBytes {
		return fmt.Errorf("events of %d bytes wait for the webhook, and --%s allows no %d more", h.bytes, flagAuditBufferBytes, size)
	}
	h.events++
	h.bytes += size
	return nil
}

func (h *auditHeld) remove(events []*auditinternal.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, event := range events {
		h.events--
		h.bytes -= auditSize(event)
	}
}

func (h *auditHeld) number() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events
}

// auditSize is about what an event takes in memory: all that clients can make
// large.
func auditSize(event *auditinternal.Event) int64 {
	const others = 2 << 10
	size := others + 2*len(event.RequestURI) + len(event.UserAgent) + len(event.Verb) + len(event.AuditID) // names in the URI are in the reference, too
	if event.RequestObject != nil {
		size += len(event.RequestObject.Raw)
	}
	if event.ResponseObject != nil {
		size += len(event.ResponseObject.Raw)
	}
	if event.ResponseStatus != nil {
		size += len(event.ResponseStatus.Message)
	}
	for key, value := range event.Annotations {
		size += len(key) + len(value)
	}
	size += auditUserSize(event.User.Groups, event.User.Extra)
	if event.ImpersonatedUser != nil {
		size += auditUserSize(event.ImpersonatedUser.Groups, event.ImpersonatedUser.Extra)
	}
	return int64(size)
}

func auditUserSize[V ~[]string](groups []string, extra map[string]V) (size int) {
	for _, group := range groups {
		size += len(group)
	}
	for key, values := range extra {
		size += len(key)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}
