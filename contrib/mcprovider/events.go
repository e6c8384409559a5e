package mcprovider

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/shardplane/shardplane/pkg/reconcile/events"
)

const (
	// maxEvents is the maximum number of waiting Events.
	maxEvents = 1000
	// eventTimeout is the timeout for writing an Event.
	eventTimeout = 10 * time.Second
)

// eventQueue writes the Events of all logical clusters sequentially. If it is full, Events are lost, as usual.
type eventQueue struct {
	provider *Provider
	waiting  chan waitingEvent
}

type waitingEvent struct {
	of clusterOf
	events.Event
}

func newEventQueue(p *Provider) *eventQueue {
	return &eventQueue{provider: p, waiting: make(chan waitingEvent, maxEvents)}
}

func (q *eventQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-q.waiting:
			q.write(ctx, e)
		}
	}
}

func (q *eventQueue) write(ctx context.Context, e waitingEvent) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err := events.Record(ctx, e.of.scope(), e.Event, e.Type, e.Reason, e.Message); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to write an Event", "cluster", e.of.name, "about", e.About, "reason", e.Reason)
	}
}

// recorderOf records Events in a logical cluster. Equal Events for an object are stored once. Events have no annotations, actions or
// related objects.
type recorderOf struct {
	of        clusterOf
	component string
}

var _ recorder.EventRecorder = recorderOf{}

// Eventf implements events.EventRecorder.
func (r recorderOf) Eventf(regarding, _ runtime.Object, eventtype, reason, _, note string, args ...any) {
	about, err := reference.GetReference(r.of.GetScheme(), regarding)
	if err != nil {
		klog.ErrorS(err, "Failed to record an Event for an object", "cluster", r.of.name, "reason", reason)
		return
	}
	e := waitingEvent{of: r.of, Event: events.Event{
		About: *about, Component: r.component, Type: eventtype, Reason: reason, Message: fmt.Sprintf(note, args...),
	}}
	select {
	case r.of.provider.events.waiting <- e:
	default:
		klog.ErrorS(nil, "Dropped an Event because the queue is full", "cluster", r.of.name, "about", about, "reason", reason)
	}
}

// AnnotatedEventf implements events.AnnotatedEventRecorder.
func (r recorderOf) AnnotatedEventf(regarding, related runtime.Object, _ map[string]string, eventtype, reason, action, note string, args ...any) {
	r.Eventf(regarding, related, eventtype, reason, action, note, args...)
}

// oldRecorder implements the old interface.
type oldRecorder struct{ recorderOf }

var _ record.EventRecorder = oldRecorder{}

// Event implements record.EventRecorder.
func (r oldRecorder) Event(object runtime.Object, eventtype, reason, message string) {
	r.recorderOf.Eventf(object, nil, eventtype, reason, "", "%s", message)
}

// Eventf implements record.EventRecorder.
func (r oldRecorder) Eventf(object runtime.Object, eventtype, reason, format string, args ...any) {
	r.recorderOf.Eventf(object, nil, eventtype, reason, "", format, args...)
}

// AnnotatedEventf implements record.EventRecorder.
func (r oldRecorder) AnnotatedEventf(object runtime.Object, _ map[string]string, eventtype, reason, format string, args ...any) {
	r.recorderOf.Eventf(object, nil, eventtype, reason, "", format, args...)
}
