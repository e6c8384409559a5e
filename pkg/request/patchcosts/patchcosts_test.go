package patchcosts

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	jsonPatch := func(operation string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(operation+",", n), ",") + "]"
	}
	list := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"name":"s%d"},`, i)
		}
		return "[" + strings.TrimSuffix(b.String(), ",") + "]"
	}
	for name, c := range map[string]struct {
		mediaType types.PatchType
		body      string
		message   string // empty if it is within the limits
	}{
		"inserted":        {types.JSONPatchType, jsonPatch(`{"op":"add","path":"/l/0","value":1}`, maxShifts), ""},
		"too many":        {types.JSONPatchType, jsonPatch(`{"op":"add","path":"/l/0","value":1}`, maxShifts+1), "has 1001 operations"},
		"removed":         {types.JSONPatchType, jsonPatch(`{"op":"remove","path":"/l/0"}`, maxShifts+1), "has 1001 operations"},
		"negative":        {types.JSONPatchType, jsonPatch(`{"op":"remove","path":"/l/-1"}`, maxShifts+1), "has 1001 operations"},
		"escaped":         {types.JSONPatchType, jsonPatch(`{"\u006fp":"remove","path":"/l/0"}`, maxShifts+1), "has 1001 operations"},
		"moved":           {types.JSONPatchType, jsonPatch(`{"op":"move","from":"/l/0","path":"/l/1"}`, maxShifts/2+1), ""},
		"too many moved":  {types.JSONPatchType, jsonPatch(`{"op":"move","from":"/l/0","path":"/l/1"}`, maxShifts+1), "has 2002 operations"},
		"appended":        {types.JSONPatchType, jsonPatch(`{"op":"add","path":"/l/-","value":1}`, 10*maxShifts), ""},
		"fields":          {types.JSONPatchType, jsonPatch(`{"op":"add","path":"/data/a","value":"b"}`, 10*maxShifts), ""},
		"merged":          {types.StrategicMergePatchType, `{"secrets":` + list(maxMerged) + `}`, ""},
		"too many merged": {types.StrategicMergePatchType, `{"secrets":` + list(maxMerged+1) + `}`, "have 1001 entries"},
		"an order":        {types.StrategicMergePatchType, `{"secrets":` + list(600) + `,"$setElementOrder/secrets":` + list(600) + `}`, "have 1200 entries"},
		"a map":           {types.StrategicMergePatchType, `{"data":{` + strings.TrimSuffix(strings.Repeat(`"a":"b",`, 5*maxMerged), ",") + `}}`, ""},
		"a merge patch":   {types.MergePatchType, `{"secrets":` + list(5*maxMerged) + `}`, ""},
		"garbage":         {types.JSONPatchType, strings.Repeat("{", 5*maxShifts), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Check([]byte(c.body), string(c.mediaType))
			if c.message == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.message)
		})
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	list := make([]any, 2*MaxKeyed+1)
	require.NoError(t, CheckLists(map[string]any{"secrets": list[1:], "rules": list, "data": map[string]any{"a": "b"}}))
	require.ErrorContains(t, CheckLists(map[string]any{"secrets": list}), "has 2001 entries")
	require.ErrorContains(t, CheckLists(map[string]any{"metadata": map[string]any{"finalizers": list[1:]}, "webhooks": []any{map[string]any{"matchConditions": list[1:]}}}), "has 4001 entries")
	require.ErrorContains(t, CheckLists([]any{map[string]any{"op": "add", "path": "/metadata/finalizers", "value": list}}), "has 2001 entries")
}
