"""The loops of a kernel's machine code, counted by hand; no compiler is needed."""

from tests.support.sass_loops import loops_of

WORK = "\n".join(f"        /*{address:04x}*/    FFMA R0, R1, R2, R3 ;" for address in range(0x20, 0x120, 16))
"""16 multiply-adds at the addresses 0x20 ... 0x110."""

CODE = f"""
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_9:
        /*0010*/                   IADD3 R9, R9, 0x1, RZ ;
.L_x_0:
.L_x_1:
{WORK}
        /*0120*/                   @!P0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR32], RZ, !UPT ;
        /*0130*/               @P1 BRA `(.L_x_1) ;
        /*0140*/              @!P2 BRA `(.L_x_9) ;
.L_x_2:
        /*0150*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR9], R8 ;
        /*0160*/              @!P1 BRA `(.L_x_2) ;
        /*0170*/                   BRA.DIV ~URZ, `(.L_x_3) ;
        /*0180*/                   EXIT ;
.L_x_3:
        /*0190*/                   NANOSLEEP.SYNCS 0x989680 ;
        /*01a0*/              @!P1 BRA `(.L_x_3);
        /*01b0*/                   BRA `(.L_x_1) ;
"""


def test_an_innermost_loop_is_what_lies_before_a_branch_back():
    """Neither the loop around it, nor one that waits for a barrier, nor the way back from after the end."""
    (loop,) = loops_of(CODE)
    assert loop == {"FFMA": 16, "HGMMA": 1, "BRA": 1}


def test_loops_come_in_the_order_of_the_code():
    second = CODE.replace("L_x_", "L_x_5").replace("FFMA", "FADD").replace("*0", "*1")
    assert [sorted(loop) for loop in loops_of(CODE + second)] == [["BRA", "FFMA", "HGMMA"], ["BRA", "FADD", "HGMMA"]]
