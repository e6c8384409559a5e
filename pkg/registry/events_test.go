package registry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// oldEvent is an event as created by clients of core/v1.
func oldEvent(name, namespace string) *corev1.Event {
	at := metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second))
	return &corev1.Event{
		ObjectMeta:     named(name),
		InvolvedObject: corev1.ObjectReference{Kind: "Thing", Namespace: namespace, Name: "t", UID: "u", APIVersion: "example.com/v1", FieldPath: "spec.a"},
		Reason:         "Happened", Message: "it happened", Type: corev1.EventTypeNormal,
		Source:         corev1.EventSource{Component: "tester", Host: "here"},
		FirstTimestamp: at, LastTimestamp: at, Count: 3,
	}
}

// newEvent is an event as created by clients of events.k8s.io/v1.
func newEvent(name, namespace string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta:          named(name),
		EventTime:           metav1.NewMicroTime(time.Now().Add(-time.Minute).Truncate(time.Microsecond)),
		ReportingController: "example.com/tester", ReportingInstance: "tester-1",
		Action: "Testing", Reason: "Happened", Note: "it happened", Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Thing", Namespace: namespace, Name: "t"},
		Related:   &corev1.ObjectReference{Kind: "Other", Name: "o"},
	}
}

// An event is one object in two forms.
func TestEventsInBothShapes(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx := t.Context()
		coreEvents, newEvents := client.CoreV1().Events(namespace), client.EventsV1().Events(namespace)

		old := mustCreate(t, coreEvents, oldEvent("old", namespace))
		seen := mustGet(t, newEvents, "old")
		require.Equal(t, old.UID, seen.UID)
		require.Equal(t, old.ResourceVersion, seen.ResourceVersion)
		require.Equal(t, old.InvolvedObject, seen.Regarding)
		require.Equal(t, old.Message, seen.Note)
		require.Equal(t, old.Source, seen.DeprecatedSource)
		require.True(t, old.FirstTimestamp.Equal(&seen.DeprecatedFirstTimestamp))
		require.True(t, old.LastTimestamp.Equal(&seen.DeprecatedLastTimestamp))
		require.Equal(t, old.Count, seen.DeprecatedCount)

		made := mustCreate(t, newEvents, newEvent("new", namespace))
		require.Equal(t, "events.k8s.io/v1", made.ManagedFields[0].APIVersion)
		require.Contains(t, string(made.ManagedFields[0].FieldsV1.GetRawBytes()), "f:regarding")
		asOld := mustGet(t, coreEvents, "new")
		require.Equal(t, made.Regarding, asOld.InvolvedObject)
		require.Equal(t, made.Related, asOld.Related)
		require.Equal(t, made.ReportingController, asOld.ReportingController)
		require.Equal(t, made.ReportingInstance, asOld.ReportingInstance)
		require.Equal(t, made.Action, asOld.Action)
		require.True(t, made.EventTime.Equal(&asOld.EventTime))

		// A series that is added in one form is visible in the other.
		made.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: made.EventTime}
		made = mustUpdate(t, newEvents, made)
		asOld = mustGet(t, coreEvents, "new")
		require.Equal(t, made.Series.Count, asOld.Series.Count)

		list, err := newEvents.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 2)
		require.NoError(t, newEvents.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		remaining, err := coreEvents.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, remaining.Items)
	})
}

func TestEventsWatchedInBothShapes(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx := t.Context()
		viaCore, err := client.CoreV1().Events(namespace).Watch(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		defer viaCore.Stop()
		viaNew, err := client.EventsV1().Events(namespace).Watch(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		defer viaNew.Stop()
		mustCreate(t, client.CoreV1().Events(namespace), oldEvent("e", namespace))
		first := next(t, viaCore)
		require.Equal(t, watch.Added, first.Type)
		require.Equal(t, "it happened", first.Object.(*corev1.Event).Message)
		second := next(t, viaNew)
		require.Equal(t, watch.Added, second.Type)
		require.Equal(t, "it happened", second.Object.(*eventsv1.Event).Note)
	})
}

func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		require.True(t, ok, "the watch ended")
		return event
	case <-time.After(30 * time.Second):
		require.FailNow(t, "no event")
		return watch.Event{}
	}
}

func TestEventFieldSelectors(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	ctx := t.Context()
	mustCreate(t, client.CoreV1().Events("ns"), oldEvent("old", "ns"))
	mustCreate(t, client.EventsV1().Events("ns"), newEvent("new", "ns"))
	for selector, want := range map[string]string{
		"involvedObject.kind=Thing,type=Warning": "new",
		"involvedObject.uid=u":                   "old",
		"involvedObject.apiVersion=":             "new",
		"involvedObject.fieldPath=spec.a":        "old",
		"involvedObject.name=t":                  "new old",
		"involvedObject.namespace=ns":            "new old",
		"involvedObject.resourceVersion=":        "new old",
		"source=tester":                          "old",
		"source=example.com/tester":              "new",
		"reportingComponent=example.com/tester":  "new",
		"reason=Other":                           "",
		"metadata.name=old":                      "old",
	} {
		list, err := client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		require.Equal(t, want, namesOf(t, list), selector)
	}
	for selector, want := range map[string]string{
		"regarding.kind=Thing,type=Warning":      "new",
		"regarding.uid=u":                        "old",
		"reportingController=example.com/tester": "new",
		"reason=Happened":                        "new old",
	} {
		list, err := client.EventsV1().Events("ns").List(ctx, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		require.Equal(t, want, namesOf(t, list), selector)
	}
	_, err := client.EventsV1().Events("ns").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Thing"})
	requireRefusal(t, err, metav1.StatusReasonBadRequest, "field label not supported: involvedObject.kind")
	_, err = client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{FieldSelector: "regarding.kind=Thing"})
	requireRefusal(t, err, metav1.StatusReasonBadRequest, "field label not supported: regarding.kind")
}

func TestEventLegacyValidation(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	for name, test := range map[string]struct {
		change func(*corev1.Event)
		want   []string
	}{
		"valid":           {func(*corev1.Event) {}, nil},
		"any type":        {func(e *corev1.Event) { e.Type = "Odd" }, nil},
		"other namespace": {func(e *corev1.Event) { e.InvolvedObject.Namespace = "other" }, []string{"involvedObject.namespace: FieldValueInvalid"}},
		"no namespace":    {func(e *corev1.Event) { e.InvolvedObject.Namespace = "" }, []string{"involvedObject.namespace: FieldValueInvalid"}},
		"new without its fields": {func(e *corev1.Event) { e.EventTime = metav1.NowMicro() }, []string{
			"reportingController: FieldValueRequired", "reportingController: FieldValueInvalid", "reportingController: FieldValueInvalid",
			"reportingInstance: FieldValueRequired", "action: FieldValueRequired",
		}},
		"too long": {func(e *corev1.Event) {
			long := strings.Repeat("x", 1025)
			e.EventTime, e.ReportingController = metav1.NowMicro(), "example.com/c"
			e.ReportingInstance, e.Action, e.Reason, e.Message = long, long, long, long
		}, []string{
			"reportingInstance: FieldValueInvalid", "action: FieldValueInvalid", "reason: FieldValueInvalid", "message: FieldValueInvalid",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			event := oldEvent("e", "ns")
			test.change(event)
			_, err := client.CoreV1().Events("ns").Create(t.Context(), event, dryRun)
			requireCauses(t, err, test.want...)
		})
	}
	// An event about a cluster-scoped object is in namespace default.
	event := oldEvent("e", "")
	mustCreate(t, client.CoreV1().Events("default"), event)
	_, err := client.CoreV1().Events("ns").Create(t.Context(), event, metav1.CreateOptions{})
	requireRefusal(t, err, metav1.StatusReasonInvalid, `Event "e" is invalid: involvedObject.namespace: Invalid value: "": does not match event.namespace`)
}

func TestEventStrictValidation(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	now := metav1.Now()
	for name, test := range map[string]struct {
		change func(*eventsv1.Event)
		want   []string
	}{
		"valid":     {func(*eventsv1.Event) {}, nil},
		"anywhere":  {func(e *eventsv1.Event) { e.Regarding.Namespace = "other" }, nil},
		"name":      {func(e *eventsv1.Event) { e.Name = "A" }, []string{"metadata.name: FieldValueInvalid"}},
		"no time":   {func(e *eventsv1.Event) { e.EventTime = metav1.MicroTime{} }, []string{"eventTime: FieldValueRequired"}},
		"type":      {func(e *eventsv1.Event) { e.Type = "Odd" }, []string{"type: FieldValueInvalid"}},
		"series":    {func(e *eventsv1.Event) { e.Series = &eventsv1.EventSeries{Count: 1} }, []string{"series.count: FieldValueInvalid", "series.lastObservedTime: FieldValueRequired"}},
		"no reason": {func(e *eventsv1.Event) { e.Reason = "" }, []string{"reason: FieldValueRequired"}},
		"deprecated": {func(e *eventsv1.Event) {
			e.DeprecatedCount, e.DeprecatedFirstTimestamp, e.DeprecatedLastTimestamp = 1, now, now
			e.DeprecatedSource.Host = "here"
		}, []string{"count: FieldValueInvalid", "firstTimestamp: FieldValueInvalid", "lastTimestamp: FieldValueInvalid", "source: FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			event := newEvent("e", "ns")
			test.change(event)
			_, err := client.EventsV1().Events("ns").Create(t.Context(), event, dryRun)
			requireCauses(t, err, test.want...)
		})
	}
	created := mustCreate(t, client.EventsV1().Events("ns"), newEvent("e", "ns"))
	for field, patch := range map[string]string{
		"involvedObject": `{"regarding":{"name":"x"}}`, "reason": `{"reason":"x"}`, "message": `{"note":"x"}`,
		"source": `{"deprecatedSource":{"host":"x"}}`, "count": `{"deprecatedCount":7}`, "type": `{"type":"Normal"}`,
		"firstTimestamp": `{"deprecatedFirstTimestamp":"2026-01-01T00:00:00Z"}`, "lastTimestamp": `{"deprecatedLastTimestamp":"2026-01-01T00:00:00Z"}`,
		"eventTime": `{"eventTime":"2026-01-01T00:00:00.000000Z"}`, "action": `{"action":"x"}`, "related": `{"related":null}`,
		"reportingController": `{"reportingController":"x.y/z"}`, "reportingInstance": `{"reportingInstance":"x"}`,
	} {
		_, err := client.EventsV1().Events("ns").Patch(t.Context(), created.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		requireCauses(t, err, field+": FieldValueInvalid")
	}
	// Through core/v1 this is allowed.
	_, err := client.CoreV1().Events("ns").Patch(t.Context(), created.Name, types.MergePatchType, []byte(`{"message":"x"}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// Events may be created with PUT and PATCH, and have no dependents.
func TestEventUpsertAndDelete(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	put := mustUpdate(t, client.CoreV1().Events("ns"), oldEvent("e", "ns"))
	require.NotEmpty(t, put.UID)
	foreground := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}
	require.NoError(t, client.CoreV1().Events("ns").Delete(t.Context(), "e", foreground))
	_, err := client.CoreV1().Events("ns").Get(t.Context(), "e", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// Events expire after an hour.
func TestEventLeaseInEtcd(t *testing.T) {
	config, etcd := newServerWithEtcd(t)
	client := newClient(t, config, "application/json")
	mustCreate(t, client.CoreV1().Events("ns"), oldEvent("e", "ns"))
	leases, err := etcd.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1)
	ttl, err := etcd.TimeToLive(t.Context(), leases.Leases[0].ID)
	require.NoError(t, err)
	// etcd3 reuses leases, which extends them a little.
	require.InDelta(t, time.Hour.Seconds(), ttl.GrantedTTL, 0.06*time.Hour.Seconds())
}
