package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Group is a MySQL group replication on 127.0.0.1.
type Group struct {
	Nodes []*MySQL
}

// notAtBoot keeps a member out of the group at its first start, at which it has no user for the
// transfer of data.
const notAtBoot = "--group-replication-start-on-boot=OFF"

// StartGroup starts a group of n members and waits until all are online. Only the primary accepts
// writes, which is the first member at the start. If multiPrimary is true, all members do. The error is
// ErrUnavailable as that of StartMySQL.
func StartGroup(ctx context.Context, n int, multiPrimary bool, o Options) (_ *Group, err error) {
	g := &Group{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Stop())
		}
	}()
	all, err := groupSettings(n, multiPrimary, o)
	if err != nil {
		return nil, err
	}
	for i, settings := range all {
		node, err := StartMySQL(ctx, MySQL97, settings)
		if err != nil {
			return nil, err
		}
		g.Nodes = append(g.Nodes, node)
		if err := node.enter(ctx, i == 0); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, node.Log())
		}
		node.args = slices.DeleteFunc(node.args, func(arg string) bool { return arg == notAtBoot })
	}
	return g, g.Whole(ctx)
}

// enter makes a server a member of its group. The first member creates the group.
func (m *MySQL) enter(ctx context.Context, first bool) error {
	creates := "OFF"
	if first {
		creates = "ON"
	}
	return m.Exec(ctx,
		fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_USER = '%s', SOURCE_PASSWORD = '%s' FOR CHANNEL 'group_replication_recovery'",
			m.User, strings.ReplaceAll(m.Password, "'", "''")),
		"SET GLOBAL group_replication_bootstrap_group = "+creates,
		"START GROUP_REPLICATION",
		"SET GLOBAL group_replication_bootstrap_group = OFF")
}

// groupSettings returns the settings of each member.
func groupSettings(n int, multiPrimary bool, o Options) ([]Options, error) {
	var addresses []string
	for range n {
		port, err := local.FreePort()
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, "127.0.0.1:"+port)
	}
	single, everywhere := "ON", "OFF"
	if multiPrimary {
		single, everywhere = "OFF", "ON"
	}
	var all []Options
	for i := range n {
		settings := map[string]string{
			"server-id": fmt.Sprint(i + 1), "report-host": "127.0.0.1", "log-bin": "binlog",
			"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "plugin-load": "group_replication.so",
			"group-replication-start-on-boot":                    "OFF", // see notAtBoot
			"group-replication-group-name":                       "8a1c7c0e-2f1d-4b5e-9c53-0d5f0c1a7e11",
			"group-replication-communication-stack":              "XCOM",
			"group-replication-local-address":                    addresses[i],
			"group-replication-group-seeds":                      strings.Join(addresses, ","),
			"group-replication-ip-allowlist":                     "127.0.0.1/8",
			"group-replication-recovery-get-public-key":          "ON",
			"group-replication-single-primary-mode":              single,
			"group-replication-enforce-update-everywhere-checks": everywhere,
			// A silent member is excluded after 5 s. It enters again by Revive, so that a test chooses when.
			"group-replication-member-expel-timeout": "0",
			"group-replication-autorejoin-tries":     "0",
			"group-replication-exit-state-action":    "READ_ONLY",
		}
		maps.Copy(settings, o.Settings)
		// A member that isn't durable can lose rows in a crash that its binary log has. It can't enter again then.
		all = append(all, Options{Durable: true, Settings: settings})
	}
	return all, nil
}

// groupState returns the role and the state of the member of, as m sees them.
func (m *MySQL) groupState(ctx context.Context, of *MySQL) (role, state string, err error) {
	row, err := m.row(ctx, "SELECT MAX(member_role), MAX(member_state) FROM performance_schema.replication_group_members WHERE member_port = "+of.Port)
	if err != nil {
		return "", "", err
	}
	return row[0], row[1], nil
}

// Whole waits until all members are online for all members.
func (g *Group) Whole(ctx context.Context) error { return testwait.Poll(ctx, g.whole) }

func (g *Group) whole(ctx context.Context) error {
	for i, by := range g.Nodes {
		for j, node := range g.Nodes {
			if _, state, err := by.groupState(ctx, node); err != nil || state != "ONLINE" {
				return fmt.Errorf("member %d is %q by member %d: %w", j+1, state, i+1, err)
			}
		}
	}
	return nil
}

// Primary waits until one of the members is online and accepts writes, and returns it. It doesn't
// ask the members without, because a frozen one doesn't answer.
func (g *Group) Primary(ctx context.Context, without ...*MySQL) (primary *MySQL, err error) {
	err = testwait.Poll(ctx, func(ctx context.Context) error {
		var failed error
		for _, node := range g.Nodes {
			if slices.Contains(without, node) {
				continue
			}
			role, state, err := node.groupState(ctx, node)
			if err != nil || role != "PRIMARY" || state != "ONLINE" {
				failed = errors.Join(failed, err)
				continue
			}
			row, err := node.row(ctx, "SELECT CAST(@@super_read_only AS CHAR)")
			if err == nil && row[0] == "0" {
				primary = node
				return nil
			}
			failed = errors.Join(failed, err)
		}
		return fmt.Errorf("no member is the primary: %w", failed)
	})
	return primary, err
}

// Switch makes a member the primary while all members run.
func (g *Group) Switch(ctx context.Context, to *MySQL) error {
	row, err := to.row(ctx, "SELECT @@server_uuid")
	if err == nil {
		_, err = to.row(ctx, "SELECT group_replication_set_as_primary('"+row[0]+"')")
	}
	return err
}

// Without waits until the other members have excluded node.
func (g *Group) Without(ctx context.Context, node *MySQL) error {
	return testwait.Poll(ctx, func(ctx context.Context) error {
		for i, by := range g.Nodes {
			if by == node {
				continue
			}
			if _, state, err := by.groupState(ctx, node); err != nil || state != "" {
				return fmt.Errorf("the excluded member is %q by member %d: %w", state, i+1, err)
			}
		}
		return nil
	})
}

// Left waits until node itself reports that it is no longer a member of the group.
func (g *Group) Left(ctx context.Context, node *MySQL) error {
	return testwait.Poll(ctx, func(ctx context.Context) error {
		if _, state, err := node.groupState(ctx, node); err != nil || state != "ERROR" {
			return fmt.Errorf("the state of the member is %q: %w", state, err)
		}
		return nil
	})
}

// Revive starts each member whose process has ended, makes each excluded member enter the group
// again, and waits until the group is whole.
func (g *Group) Revive(ctx context.Context) error {
	return testwait.Poll(ctx, func(ctx context.Context) error {
		var failed error
		for _, node := range g.Nodes {
			if node.Ended() {
				if err := node.Restart(ctx); err != nil {
					return err
				}
			}
			_, state, err := node.groupState(ctx, node)
			if err == nil && (state == "ERROR" || state == "OFFLINE") {
				err = node.Exec(ctx, "STOP GROUP_REPLICATION", "START GROUP_REPLICATION")
			}
			failed = errors.Join(failed, err)
		}
		return errors.Join(failed, g.whole(ctx))
	})
}

// Stop ends all members and removes their data.
func (g *Group) Stop() (err error) {
	for _, node := range g.Nodes {
		err = errors.Join(err, node.Stop())
	}
	return err
}
