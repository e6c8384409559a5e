package events

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// filler creates random objects that differ in every field, so that the tests below fail for fields that a new release of
// Kubernetes adds.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.2).NumElements(1, 3).Funcs(
		func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
		func(t *metav1.Time, c randfill.Continue) { t.Time = time.Unix(c.Int63n(1<<33), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) { t.Time = time.UnixMicro(c.Int63n(1 << 53)) },
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawString(`{"f:` + c.String(5) + `":{}}`) },
	)
}

func TestConversionIsLossless(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, resource.Group{GroupVersion: corev1.SchemeGroupVersion, Resources: []resource.Definition{Core()}}.Register(scheme))
	require.NoError(t, Group().Register(scheme))
	for seed := range int64(200) {
		event, list := &corev1.Event{}, &corev1.EventList{}
		filler(seed).Fill(event)
		filler(seed).Fill(list)
		other, back := &eventsv1.Event{}, &corev1.Event{}
		require.NoError(t, scheme.Convert(event, other, nil))
		require.NoError(t, scheme.Convert(other, back, nil))
		require.Equal(t, event, back)

		otherList, backList := &eventsv1.EventList{}, &corev1.EventList{}
		require.NoError(t, scheme.Convert(list, otherList, nil))
		require.NoError(t, scheme.Convert(otherList, backList, nil))
		require.Equal(t, list, backList)
	}
}

// Every field of either form has a counterpart in the other one.
func TestConversionCoversAllFields(t *testing.T) {
	require.Equal(t, reflect.TypeFor[corev1.Event]().NumField(), reflect.TypeFor[eventsv1.Event]().NumField())
	require.Equal(t, reflect.TypeFor[corev1.EventSeries]().NumField(), reflect.TypeFor[eventsv1.EventSeries]().NumField())
}

func FuzzValidation(f *testing.F) {
	f.Add("ns", "ns", "example.com/c", "c-1", "Act", "Because", "note", "Normal", int64(1), int32(2))
	f.Add("default", "", "", "", "", "", "", "", int64(0), int32(0))
	f.Add("kube-system", "", "a/b/c", strings.Repeat("x", 129), "", "", strings.Repeat("x", 1025), "x", int64(-1), int32(-1))
	f.Fuzz(func(t *testing.T, namespace, involved, controller, instance, action, reason, note, kind string, at int64, seen int32) {
		event := &corev1.Event{
			ObjectMeta:          metav1.ObjectMeta{Name: "e", Namespace: namespace},
			InvolvedObject:      corev1.ObjectReference{Namespace: involved, Name: "t", Kind: "Thing"},
			ReportingController: controller, ReportingInstance: instance, Action: action, Reason: reason, Message: note, Type: kind,
			Series: &corev1.EventSeries{Count: seen},
		}
		if at != 0 {
			event.EventTime = metav1.NewMicroTime(time.Unix(at, 0))
		}
		legacy := validateCreate(event, corev1.SchemeGroupVersion)
		strict := validateCreate(event, eventsv1.SchemeGroupVersion)
		require.GreaterOrEqual(t, len(strict), len(legacy), "the strict rules must include the legacy rules")
		if len(strict) == 0 {
			require.Empty(t, validateUpdate(event, event.DeepCopy(), corev1.SchemeGroupVersion))
		}
		_ = source(event) + target(event) + lastSeen(event) + firstSeen(event)
		require.Equal(t, int64(seen), count(event))
	})
}
