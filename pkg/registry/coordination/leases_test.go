package coordination

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func TestValidateSpec(t *testing.T) {
	oldest, unknown, domain, empty := coordinationv1.OldestEmulationVersion, coordinationv1.CoordinatedLeaseStrategy("odd"),
		coordinationv1.CoordinatedLeaseStrategy("example.com/mine"), coordinationv1.CoordinatedLeaseStrategy("")
	bad := coordinationv1.CoordinatedLeaseStrategy("a/b/c")
	holder := "me"
	for name, test := range map[string]struct {
		spec coordinationv1.LeaseSpec
		want []string
	}{
		"empty":                {coordinationv1.LeaseSpec{}, nil},
		"known":                {coordinationv1.LeaseSpec{Strategy: &oldest, PreferredHolder: &holder}, nil},
		"domain":               {coordinationv1.LeaseSpec{Strategy: &domain}, nil},
		"unknown":              {coordinationv1.LeaseSpec{Strategy: &unknown}, []string{`spec.strategy.strategy: Unsupported value: "odd": supported values: "OldestEmulationVersion"`}},
		"no strategy":          {coordinationv1.LeaseSpec{PreferredHolder: &holder}, []string{"spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"}},
		"empty strategy":       {coordinationv1.LeaseSpec{Strategy: &empty, PreferredHolder: &holder}, []string{`spec.strategy.strategy: Unsupported value: "": supported values: "OldestEmulationVersion"`, "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"}},
		"malformed":            {coordinationv1.LeaseSpec{Strategy: &bad}, []string{`spec.strategy.strategy: Invalid value: "a/b/c": ` + validation.IsQualifiedName("a/b/c")[0]}},
		"duration, transition": {coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32), LeaseTransitions: new(int32)}, []string{"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, err := range validateSpec(&test.spec) {
				got = append(got, err.Error())
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestCoordinationFollowsItsGate(t *testing.T) {
	strategy, holder := coordinationv1.OldestEmulationVersion, "me"
	full := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{Strategy: &strategy, PreferredHolder: &holder}}
	lease := full.DeepCopy()
	dropCoordination(lease, &coordinationv1.Lease{})
	require.Equal(t, coordinationv1.LeaseSpec{}, lease.Spec)
	lease = full.DeepCopy()
	dropCoordination(lease, &full)
	require.Equal(t, full.Spec, lease.Spec, "existing fields must be kept")
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CoordinatedLeaderElection, true)
	lease = full.DeepCopy()
	dropCoordination(lease, &coordinationv1.Lease{})
	require.Equal(t, full.Spec, lease.Spec)
}

func FuzzStrategy(f *testing.F) {
	for _, seed := range []string{"", "OldestEmulationVersion", "a", "a/b", "a/b/c", "/", strings.Repeat("x", 300)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		strategy := coordinationv1.CoordinatedLeaseStrategy(name)
		if len(validateSpec(&coordinationv1.LeaseSpec{Strategy: &strategy})) == 0 {
			require.True(t, name == string(coordinationv1.OldestEmulationVersion) || strings.Count(name, "/") == 1)
		}
	})
}
