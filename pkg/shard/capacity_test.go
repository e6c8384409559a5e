package shard

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// TestCapacityFlags checks the errors of invalid values.
func TestCapacityFlags(t *testing.T) {
	embedded := etcd.NewOptions("", "")
	external := embedded
	external.Servers = []string{"https://etcd:2379"}
	for _, tc := range []struct {
		args []string
		etcd etcd.Options
		want string
	}{
		{args: nil, etcd: embedded},
		{args: []string{"--max-workspaces=10", "--max-objects=100", "--max-storage=8Gi"}, etcd: embedded},
		{args: []string{"--max-storage=80Gi"}, etcd: external},
		{args: []string{"--max-storage=9Gi"}, etcd: embedded, want: "--max-storage 9Gi is more than --etcd-quota-backend-bytes, 8589934592: raise the quota, or use a lower limit"},
		{args: []string{"--max-workspaces=-1"}, etcd: embedded, want: "--max-workspaces -1 is negative: use 0 for any number"},
		{args: []string{"--max-objects=-1"}, etcd: embedded, want: "--max-objects -1 is negative: use 0 for any number"},
		{args: []string{"--max-storage=-1"}, etcd: embedded, want: "--max-storage -1 is negative: use 0 for as much as the quota of etcd allows"},
		{args: []string{"--max-storage=much"}, etcd: embedded, want: "write a quantity such as 512Mi"},
	} {
		var o CapacityOptions
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		err := fs.Parse(tc.args)
		if err == nil {
			err = errors.Join(o.Validate(tc.etcd)...)
		}
		if tc.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, tc.want)
	}
}
