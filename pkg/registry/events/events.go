package events

import (
	"cmp"
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
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
	Singular:   "event",
	Kind:       "Event",
	ShortNames: []string{"ev"},
	Namespaced: true,
	New:        func() *corev1.Event { return &corev1.Event{} },
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
	FieldLabels: []string{
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
		"reason", "reportingComponent", "source", "type",
	},
	Columns: columns,
}

// eventsV1FieldLabels maps the field labels of events.k8s.io/v1 to those of core/v1.
var eventsV1FieldLabels = map[string]string{
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

// requestVersion returns the API version of the request. Without a request it returns the zero value, for which the strict
// rules apply.
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

// wide restricts a column to wide output.
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

// source returns the reporting component and its instance.
func source(e *corev1.Event) string {
	component := cmp.Or(e.Source.Component, e.ReportingController)
	instance := cmp.Or(e.Source.Host, e.ReportingInstance)
	if instance == "" {
		return component
	}
	return component + ", " + instance
}
