package disk

import "golang.org/x/sys/unix"

// Statfs returns the statistics of a file system. Tests replace it.
var Statfs = unix.Statfs

// networks holds the file systems that share one file between hosts. They have no shared
// memory between the hosts, and often no locks.
var networks = map[int64]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.V9FS_MAGIC:        "9p",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.NCP_SUPER_MAGIC:   "NCP",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x01161970:             "GFS2",
	0x19830326:             "BeeGFS",
	0x20030528:             "OrangeFS",
	0xaad7aaea:             "PanFS",
}

// NetworkFS returns the name of the network file system that holds the folder. It returns ""
// for a local file system, and on systems other than Linux.
func NetworkFS(folder string) (string, error) {
	var s unix.Statfs_t
	if err := Statfs(folder, &s); err != nil {
		return "", err
	}
	return networks[int64(uint32(s.Type))], nil
}
