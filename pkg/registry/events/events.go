// Package events describes events, which two API groups serve in different forms: core/v1, and events.k8s.io/v1 with other
// field names and stricter rules. They are stored as core/v1, for an hour.
package events

import (
	"cmp"
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

const timeToLive = time.Hour

// Group returns events.k8s.io/v1, which serves the events of the core group. It must be built after the group with Core.
func Group() resource.Group {
	return resource.Group{
		GroupVersion: eventsv1.SchemeGroupVersion,
		Resources: []resource.Definition{&resource.Alternate[*corev1.Event]{
			Of:          events,
			New:         func() runtime.Object { return &eventsv1.Event{} },
			NewList:     func() runtime.Object { return &eventsv1.EventList{} },
			FieldLabels: eventsV1FieldLabels,
		}},
		AddToScheme: addConversions,
	}
}

// Core returns the resource as the core group serves it.
func Core() resource.Definition { return events }

var events = &resource.Resource[*corev1.Event]{
	Name:       "events",
	Kind:       "Event",
	ShortNames: []string{"ev"},
	Namespaced: true,
	NewList:    func() runtime.Object { return &corev1.EventList{} },
	TTL:        timeToLive,
	Strategy: resource.Strategy[*corev1.Event]{
		Validate: func(ctx context.Context, event *corev1.Event) field.ErrorList {
			return validateCreate(event, requestVersion(ctx))
		},
		ValidateUpdate: func(ctx context.Context, event, old *corev1.Event) field.ErrorList {
			return validateUpdate(event, old, requestVersion(ctx))
		},
		CreateOnUpdate:      true,
		UnconditionalUpdate: true,
		GarbageCollection:   rest.Unsupported,
	},
	Selectable: selectable,
	Columns:    columns,
}

// eventsV1FieldLabels maps the field labels of events.k8s.io/v1 to those of core/v1.
var eventsV1FieldLabels = map[string]string{
	"metadata.name":             "metadata.name",
	"metadata.namespace":        "metadata.namespace",
	"reason":                    "reason",
	"regarding.kind":            "involvedObject.kind",
	"regarding.namespace":       "involvedObject.namespace",
	"regarding.name":            "involvedObject.name",
	"regarding.uid":             "involvedObject.uid",
	"regarding.apiVersion":      "involvedObject.apiVersion",
	"regarding.resourceVersion": "involvedObject.resourceVersion",
	"regarding.fieldPath":       "involvedObject.fieldPath",
	"reportingController":       "reportingComponent",
	"type":                      "type",
}

func selectable(event *corev1.Event) fields.Set {
	return fields.Set{
		"involvedObject.kind":            event.InvolvedObject.Kind,
		"involvedObject.namespace":       event.InvolvedObject.Namespace,
		"involvedObject.name":            event.InvolvedObject.Name,
		"involvedObject.uid":             string(event.InvolvedObject.UID),
		"involvedObject.apiVersion":      event.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": event.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       event.InvolvedObject.FieldPath,
		"reason":                         event.Reason,
		"reportingComponent":             event.ReportingController,
		"source":                         cmp.Or(event.Source.Component, event.ReportingController),
		"type":                           event.Type,
	}
}

// requestVersion returns the API version of the request. For the zero value, the strict rules apply.
func requestVersion(ctx context.Context) schema.GroupVersion {
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	return schema.GroupVersion{}
}

var eventDoc = corev1.Event{}.SwaggerDoc()

var columns = []resource.Column[*corev1.Event]{
	{Name: "Last Seen", Description: eventDoc["lastTimestamp"], Cell: func(e *corev1.Event) any { return lastSeen(e) }},
	{Name: "Type", Description: eventDoc["type"], Cell: func(e *corev1.Event) any { return e.Type }},
	{Name: "Reason", Description: eventDoc["reason"], Cell: func(e *corev1.Event) any { return e.Reason }},
	{Name: "Object", Description: eventDoc["involvedObject"], Cell: func(e *corev1.Event) any { return target(e) }},
	{
		Name: "Subobject", Priority: 1, Description: corev1.ObjectReference{}.SwaggerDoc()["fieldPath"],
		Cell: func(e *corev1.Event) any { return e.InvolvedObject.FieldPath },
	},
	{Name: "Source", Priority: 1, Description: eventDoc["source"], Cell: func(e *corev1.Event) any { return source(e) }},
	{Name: "Message", Description: eventDoc["message"], Cell: func(e *corev1.Event) any { return strings.TrimSpace(e.Message) }},
	{Name: "First Seen", Priority: 1, Description: eventDoc["firstTimestamp"], Cell: func(e *corev1.Event) any { return firstSeen(e) }},
	{Name: "Count", Priority: 1, Description: eventDoc["count"], Cell: func(e *corev1.Event) any { return count(e) }},
	wide(resource.NameColumn[*corev1.Event]()),
}

func wide(c resource.Column[*corev1.Event]) resource.Column[*corev1.Event] {
	c.Priority = 1
	return c
}

func firstSeen(e *corev1.Event) string {
	if e.FirstTimestamp.IsZero() {
		return resource.Since(e.EventTime.Time)
	}
	return resource.Since(e.FirstTimestamp.Time)
}

func lastSeen(e *corev1.Event) string {
	switch {
	case e.Series != nil:
		return resource.Since(e.Series.LastObservedTime.Time)
	case e.LastTimestamp.IsZero():
		return firstSeen(e)
	default:
		return resource.Since(e.LastTimestamp.Time)
	}
}

// count returns the number of occurrences. Events of the new API that are not part of a series have no count.
func count(e *corev1.Event) int64 {
	switch {
	case e.Series != nil:
		return int64(e.Series.Count)
	case e.Count == 0:
		return 1
	default:
		return int64(e.Count)
	}
}

func target(e *corev1.Event) string {
	kind := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name == "" {
		return kind
	}
	return kind + "/" + e.InvolvedObject.Name
}

func source(e *corev1.Event) string {
	component := cmp.Or(e.Source.Component, e.ReportingController)
	instance := cmp.Or(e.Source.Host, e.ReportingInstance)
	if instance == "" {
		return component
	}
	return component + ", " + instance
}

// addConversions registers the conversions between both forms. As usual, the result shares memory with its source.
func addConversions(scheme *runtime.Scheme) error {
	for _, c := range []struct {
		from, to any
		convert  conversion.ConversionFunc
	}{
		{(*corev1.Event)(nil), (*eventsv1.Event)(nil), func(a, b any, _ conversion.Scope) error {
			toEventsV1(a.(*corev1.Event), b.(*eventsv1.Event))
			return nil
		}},
		{(*eventsv1.Event)(nil), (*corev1.Event)(nil), func(a, b any, _ conversion.Scope) error {
			toCore(a.(*eventsv1.Event), b.(*corev1.Event))
			return nil
		}},
		{(*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
			from, to := a.(*corev1.EventList), b.(*eventsv1.EventList)
			to.ListMeta, to.Items = from.ListMeta, convertItems(from.Items, toEventsV1)
			return nil
		}},
		{(*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
			from, to := a.(*eventsv1.EventList), b.(*corev1.EventList)
			to.ListMeta, to.Items = from.ListMeta, convertItems(from.Items, toCore)
			return nil
		}},
	} {
		if err := scheme.AddConversionFunc(c.from, c.to, c.convert); err != nil {
			return err
		}
	}
	return nil
}

// convertItems preserves nil, which is encoded as null.
func convertItems[From, To any](in []From, convert func(*From, *To)) []To {
	if in == nil {
		return nil
	}
	out := make([]To, len(in))
	for i := range in {
		convert(&in[i], &out[i])
	}
	return out
}

func toEventsV1(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta:               in.ObjectMeta,
		EventTime:                in.EventTime,
		ReportingController:      in.ReportingController,
		ReportingInstance:        in.ReportingInstance,
		Action:                   in.Action,
		Reason:                   in.Reason,
		Regarding:                in.InvolvedObject,
		Related:                  in.Related,
		Note:                     in.Message,
		Type:                     in.Type,
		DeprecatedSource:         in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp:  in.LastTimestamp,
		DeprecatedCount:          in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func toCore(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta:          in.ObjectMeta,
		EventTime:           in.EventTime,
		ReportingController: in.ReportingController,
		ReportingInstance:   in.ReportingInstance,
		Action:              in.Action,
		Reason:              in.Reason,
		InvolvedObject:      in.Regarding,
		Related:             in.Related,
		Message:             in.Note,
		Type:                in.Type,
		Source:              in.DeprecatedSource,
		FirstTimestamp:      in.DeprecatedFirstTimestamp,
		LastTimestamp:       in.DeprecatedLastTimestamp,
		Count:               in.DeprecatedCount,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}
